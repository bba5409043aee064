"""The application: its commands, its consoles, and how it reports errors, warnings and signals."""

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from popgibbs.cli import cache

# Nothing here or at the top of a command's file imports JAX, so that help appears at once.
app = typer.Typer(
    help="Amortized population Gibbs samplers: train once, then sample posteriors of new instances.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# No markup, because file names and lists in messages contain brackets.
out = Console(markup=False)
err = Console(stderr=True, markup=False)


class Command(TyperCommand):
    """A command that configures JAX when it runs; its help does not need JAX."""

    def invoke(self, ctx: Any) -> Any:
        _use_all_cores()
        cache.use()
        return super().invoke(ctx)


@contextmanager
def stoppable(advice: str | Callable[[], str]) -> Iterator[None]:
    """End a command on Ctrl-C or SIGTERM with one sentence: how far it got, and what to do next."""
    from popgibbs.training import Interrupted, end_at_once, terminable

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
    _write_to(parent)


def check_directory(path: Path) -> None:
    """Refuse a directory that cannot be created or written, before anything is computed; nothing of it is kept."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; name a directory")
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    created: list[Path] = []
    try:
        for parent in reversed(missing):
            parent.mkdir()
            created.append(parent)
        _write_to(path)
    except OSError as error:
        raise ValueError(f"cannot write to {path}: {error.strerror}") from None
    finally:
        for parent in reversed(created):
            parent.rmdir()


def _write_to(directory: Path) -> None:
    """Try it, because permissions alone do not say it for root and for file systems such as /proc."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ValueError(f"cannot write to the directory {directory}: {error.strerror}") from None


def main() -> None:
    """Run a command; user errors and warnings are reported in one sentence each."""
    for path in sorted((Path(__file__).parent / "commands").glob("[a-z]*.py")):
        import_module(f"popgibbs.cli.commands.{path.stem}")  # importing it adds the command
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app()
    except Exception as error:
        if (sentence := _sentence(error)) is None:
            raise
        err.print(f"popgibbs: {sentence}", style="red", highlight=False, soft_wrap=True)
        sys.exit(1)


def _sentence(error: Exception) -> str | None:
    """An error that users can put right, as a sentence; None for all others, which are bugs."""
    from popgibbs.training import CheckpointError

    if isinstance(error, ValueError | CheckpointError | FloatingPointError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return None


def _use_all_cores() -> None:
    """Show one host device per core, because XLA on CPU runs small operations on one core each."""
    if "JAX_NUM_CPU_DEVICES" in os.environ:
        return
    import jax

    with suppress(RuntimeError):  # JAX is already running, in a process that someone else configured
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)


def _show_warning(message: Warning | str, *_: Any) -> None:
    err.print(f"popgibbs: {message}", style="yellow", highlight=False, soft_wrap=True)
