"""One writer per run directory: a lock that the kernel releases when its process ends for whatever reason."""

import os
import socket
import warnings
from contextlib import suppress
from datetime import datetime
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no flock, so there is no lock
    fcntl = None

NAME = "writer.lock"


class Lock:
    """Exclusive use of a directory by one writer, from construction to `release`.

    Raises:
        BlockingIOError: Another writer holds the directory; `strerror` names its process.
    """

    def __init__(self, directory: Path):
        self._path = directory / NAME
        self._file: int | None = None
        while self._file is None and fcntl is not None:
            opened = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(opened, self._path):  # if not, its holder removed the file between our open and our lock
                    self._file = opened
            except BlockingIOError as error:
                raise BlockingIOError(error.errno, _holder(opened), str(directory)) from None
            except OSError as error:  # a file system without locks
                message = f"cannot lock {directory} ({error.strerror}); make sure that no other process writes there"
                warnings.warn(message, stacklevel=3)
                return
            finally:
                if self._file is None:
                    os.close(opened)
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.write(self._file, _this_process().encode())

    def release(self) -> None:
        """Let other writers in; a second call does nothing."""
        if self._file is not None:
            with suppress(FileNotFoundError):
                self._path.unlink()
            os.close(self._file)
            self._file = None


def _is_at(opened: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(opened), path.stat())
    except FileNotFoundError:
        return False


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}, which started at {datetime.now():%Y-%m-%d %H:%M:%S}"


def _holder(opened: int) -> str:
    return os.pread(opened, 500, 0).decode(errors="replace") or "another process"
