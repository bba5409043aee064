"""SIGINT (Ctrl-C) and SIGTERM: held back while there is something to save, and otherwise an end at once."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal."""

    def __init__(self, message: str = "", number: int = signal.SIGINT):
        super().__init__(message)
        self.number = number

    @property
    def exit_code(self) -> int:
        """What shells expect of a process that a signal ended."""
        return 128 + self.number


class Held:
    """The signal that was held back, if there was one."""

    number: int | None = None


@contextmanager
def held_back() -> Iterator[Held]:
    """Hold back the first signal, so that a training step is never cut in half; the second ends the block at once."""
    held = Held()

    def handle(number: int, frame: Any) -> None:
        if held.number is not None:
            raise Interrupted("stopped at once, without saving", number)
        held.number = number

    with _handling(handle, signal.SIGINT, signal.SIGTERM):
        yield held


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM unwinds as Ctrl-C does, so that half-written files are removed."""

    def handle(number: int, frame: Any) -> None:
        raise Interrupted(number=number)

    with _handling(handle, signal.SIGTERM):
        yield


@contextmanager
def _handling(handle: Callable[[int, Any], None], *numbers: int) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # the only one that Python lets handle signals
        yield
        return
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def end_at_once(code: int) -> NoReturn:
    """End the process. Python's own way waits for XLA's threads, which compile and compute on, and can crash in that."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
