"""SIGINT (Ctrl-C) and SIGTERM: delayed while there is something to save, otherwise effective at once."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


class Interrupted(KeyboardInterrupt):
    """Raised when SIGINT or SIGTERM stops a run; `fit` with checkpoints saves first.

    Args:
        message: What was stopped, and where.
        number: The number of the signal.

    Examples:
        >>> pg.Interrupted("stopped after step 3").exit_code
        130
    """

    def __init__(self, message: str = "", number: int = signal.SIGINT):
        super().__init__(message)
        self.number = number

    @property
    def exit_code(self) -> int:
        """The exit code of a process that this signal ended, 128 + number."""
        return 128 + self.number


class Held:
    """The signal that was held back, if there was one."""

    number: int | None = None


@contextmanager
def held_back() -> Iterator[Held]:
    """Delay the first signal, so that a training step is never cut in half; the second raises `Interrupted` at once."""
    held = Held()

    def handle(number: int, frame: Any) -> None:
        if held.number is not None:
            raise Interrupted("stopped at once, without saving", number)
        held.number = number

    with _handling(handle, signal.SIGINT, signal.SIGTERM):
        yield held


@contextmanager
def terminable() -> Iterator[None]:
    """Make SIGTERM unwind the stack as Ctrl-C does, so that half-written files are removed."""

    def handle(number: int, frame: Any) -> None:
        raise Interrupted(number=number)

    with _handling(handle, signal.SIGTERM):
        yield


@contextmanager
def _handling(handle: Callable[[int, Any], None], *numbers: int) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # Python handles signals in the main thread only
        yield
        return
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def end_at_once(code: int) -> NoReturn:
    """End the process. A normal exit waits for XLA's threads, which continue to compile and compute, and can crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
