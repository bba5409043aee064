"""Progress bars on standard error, for training with its metrics, for sampling, and for any other steps."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isnan
from threading import Timer
from typing import TYPE_CHECKING, Any, TypeVar

from popgibbs._typing import Tracker

if TYPE_CHECKING:
    import rich.console

T = TypeVar("T")


SPEED_OVER = 1800.0  # seconds; training on videos reports less than once per minute


@contextmanager
def training_progress(
    num_steps: int,
    labels: Sequence[str],
    num_particles: int,
    start: int = 0,
    console: "rich.console.Console | None" = None,
) -> Iterator[Tracker]:
    """A tracker that draws a progress bar on standard error while the block runs."""
    import rich.progress as bar  # here, as below, because samplers without a progress bar do not need it
    from rich.console import Console
    from rich.table import Column
    from rich.text import Text

    class Speed(bar.ProgressColumn):
        def render(self, task: bar.Task) -> Text:
            speed = task.finished_speed or task.speed
            if speed or task.finished:
                return Text(f"{speed:.1f}/s" if speed else "")
            return Text(f"compiling {task.elapsed or 0:.0f} s")

    console = console or Console(stderr=True)
    # On a narrow terminal only the metrics at the end wrap.
    columns = [
        bar.TextColumn("training"),
        bar.BarColumn(bar_width=10),
        bar.MofNCompleteColumn(table_column=Column(no_wrap=True)),
        Speed(table_column=Column(no_wrap=True)),
        bar.TimeRemainingColumn(table_column=Column(no_wrap=True)),
        bar.TextColumn("{task.fields[numbers]}", table_column=Column(no_wrap=False)),
    ]
    with bar.Progress(*columns, console=console, speed_estimate_period=SPEED_OVER) as progress:
        task = progress.add_task("training", total=num_steps, completed=start, numbers="")

        def tracker(step: int, metrics: Mapping[str, Any]) -> None:
            sampled = not isnan(metrics["ess"][0])  # otherwise the run learns from pairs, and only acceptance is known
            what, shown, digits = (f"ESS/{num_particles}", "ess", 1) if sampled else ("acceptance", "acceptance", 2)
            pairs = zip(labels, metrics[shown], strict=True)
            by_block = " ".join(f"{label} {value:.{digits}f}" for label, value in pairs if not isnan(value))
            numbers = f"loss {metrics['loss'].sum():.1f} · log joint {metrics['log_joint']:.1f} · {what} {by_block}"
            if metrics["beta"] < 1:
                numbers += f" · β {metrics['beta']:.4f}"
            if metrics["skipped"]:
                numbers += f" · {int(metrics['skipped'])} skipped"
            progress.update(task, completed=step, numbers=numbers)

        yield tracker


@contextmanager
def sampling_progress(
    num_instances: int, console: "rich.console.Console | None" = None
) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of newly finished instances, which draws a progress bar on standard error."""
    import rich.progress as bar
    from rich.console import Console
    from rich.text import Text

    class Wait(bar.ProgressColumn):
        def render(self, task: bar.Task) -> Text:
            return Text("" if task.completed or (task.elapsed or 0) < 1 else f"compiling {task.elapsed:.0f} s")

    columns = [
        bar.TextColumn("sampling"),
        bar.BarColumn(bar_width=20),
        bar.MofNCompleteColumn(),
        bar.TimeRemainingColumn(),
        Wait(),
    ]
    with bar.Progress(*columns, console=console or Console(stderr=True)) as progress:
        task = progress.add_task("sampling", total=num_instances)
        yield lambda done: progress.advance(task, done)


@contextmanager
def waiting(what: str, console: "rich.console.Console | None" = None) -> Iterator[None]:
    """Say on standard error what the block does, with elapsed seconds, if it takes more than one."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = [SpinnerColumn(), TextColumn(what), TimeElapsedColumn()]
    progress = Progress(*columns, console=console or Console(stderr=True), transient=True)
    progress.add_task(what, total=None)
    timer = Timer(1.0, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        progress.stop()


def progress_of(title: str, steps: Sequence[T], console: "rich.console.Console | None" = None) -> Iterable[T]:
    """The steps, with a progress bar on standard error while they are iterated over."""
    from rich.console import Console
    from rich.progress import track

    return track(steps, title, console=console or Console(stderr=True))
