"""The application: its commands, its consoles, and how it reports errors, warnings and signals."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import typer
from rich.console import Console

from popgibbs.training import CheckpointError, Interrupted, end_at_once, terminable

app = typer.Typer(
    help="Amortized population Gibbs samplers: train once, then sample posteriors of new instances.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# No markup, because file names and lists in messages contain brackets.
out = Console(markup=False)
err = Console(stderr=True, markup=False)


@contextmanager
def stoppable(advice: str | Callable[[], str]) -> Iterator[None]:
    """End a command on Ctrl-C or SIGTERM with one sentence: how far it got, and what to do next."""
    try:
        with terminable():
            yield
    except KeyboardInterrupt as stop:  # also `Interrupted`, from a training run that may have been saved
        err.print(f"{str(stop) or 'stopped'}; {advice() if callable(advice) else advice}")
        end_at_once(stop.exit_code if isinstance(stop, Interrupted) else 130)


def check_output(path: Path, *, makes_parents: bool = False) -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    if path.is_dir():
        raise ValueError(f"{path} is a directory; name a file in it")
    parent = path.absolute().parent
    while makes_parents and not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise ValueError(f"there is no directory {parent}")
    if not os.access(parent, os.W_OK):
        raise ValueError(f"cannot write to the directory {parent}")


def main() -> None:
    """Run a command; user errors and warnings are reported in one sentence each."""
    _use_all_cores()
    for path in sorted((Path(__file__).parent / "commands").glob("[a-z]*.py")):
        import_module(f"popgibbs.cli.commands.{path.stem}")  # importing it adds the command
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app()
    except (ValueError, CheckpointError, FloatingPointError) as error:
        err.print(f"popgibbs: {error}", style="red", highlight=False, soft_wrap=True)
        sys.exit(1)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else error
        err.print(f"popgibbs: {reason}", style="red", highlight=False, soft_wrap=True)
        sys.exit(1)


def _use_all_cores() -> None:
    """Show one host device per core, because XLA on CPU runs small operations on one core each."""
    if "JAX_NUM_CPU_DEVICES" in os.environ:
        return
    with suppress(RuntimeError):  # JAX is already running, in a process that someone else configured
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)


def _show_warning(message: Warning | str, *_: Any) -> None:
    err.print(f"popgibbs: {message}", style="yellow", highlight=False, soft_wrap=True)
