"""Progress bars on standard error, for training with its metrics, for sampling, and for any other steps."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
    track,
)
from rich.table import Column
from rich.text import Text

from popgibbs._typing import Tracker

T = TypeVar("T")


SPEED_OVER = 1800.0  # seconds; training on videos reports less than once per minute


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.1f}/s" if speed else "compiling")


@contextmanager
def training_progress(
    num_steps: int, labels: Sequence[str], num_particles: int, start: int = 0, console: Console | None = None
) -> Iterator[Tracker]:
    """A tracker that draws a progress bar on standard error while the block runs."""
    console = console or Console(stderr=True)
    # On a narrow terminal only the metrics at the end wrap.
    columns = [
        TextColumn("training"),
        BarColumn(bar_width=10),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        _Speed(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[numbers]}", table_column=Column(no_wrap=False)),
    ]
    with Progress(*columns, console=console, speed_estimate_period=SPEED_OVER) as progress:
        task = progress.add_task("training", total=num_steps, completed=start, numbers="")

        def tracker(step: int, metrics: Mapping[str, Any]) -> None:
            ess = " ".join(f"{label} {value:.1f}" for label, value in zip(labels, metrics["ess"], strict=True))
            numbers = (
                f"loss {metrics['loss'].sum():.1f} · log joint {metrics['log_joint']:.1f} · ESS/{num_particles} {ess}"
            )
            if metrics["beta"] < 1:
                numbers += f" · β {metrics['beta']:.4f}"
            if metrics["skipped"]:
                numbers += f" · {int(metrics['skipped'])} skipped"
            progress.update(task, completed=step, numbers=numbers)

        yield tracker


@contextmanager
def sampling_progress(num_instances: int, console: Console | None = None) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of newly finished instances, which draws a progress bar on standard error."""
    columns = [TextColumn("sampling"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=console or Console(stderr=True)) as progress:
        task = progress.add_task("sampling", total=num_instances)
        yield lambda done: progress.advance(task, done)


def progress_of(title: str, steps: Sequence[T], console: Console | None = None) -> Iterable[T]:
    """The steps, with a progress bar on standard error while they are iterated over."""
    return track(steps, title, console=console or Console(stderr=True))
