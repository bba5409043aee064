"""A directory has one writer, and is free when that process ends for whatever reason."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import popgibbs as pg
from popgibbs.training import Checkpoints, Lock, lock, read

HOLDER = """
import sys, time
from pathlib import Path
from popgibbs.training import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_the_error_of_a_second_writer_names_the_process_that_holds_the_directory(tmp_path: Path) -> None:
    first = Checkpoints(tmp_path)
    holder = rf"is being written by process {os.getpid()} on .*, which started at \d{{4}}-.*; wait for it or choose"
    with pytest.raises(pg.CheckpointError, match=holder):
        Checkpoints(tmp_path)
    first.close()
    second = Checkpoints(tmp_path)
    second.close()
    assert not (tmp_path / lock.NAME).exists()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError, match=f"process {holder.pid} on"):
            Lock(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert (tmp_path / lock.NAME).exists()
    Lock(tmp_path).release()


def test_a_writer_that_waited_for_a_file_which_was_then_removed_locks_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder removes its file when it ends, and a lock on the removed file would exclude nobody."""
    holder, flock = Lock(tmp_path), lock.fcntl.flock

    def after_the_end_of_the_holder(*arguments: int) -> None:
        holder.release()
        flock(*arguments)

    monkeypatch.setattr(lock.fcntl, "flock", after_the_end_of_the_holder)
    second = Lock(tmp_path)
    monkeypatch.undo()
    with pytest.raises(BlockingIOError):
        Lock(tmp_path)
    second.release()


def test_a_file_system_without_locks_gives_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match=r"cannot lock .* \(Operation not supported\); make sure that no other process"):
        Lock(tmp_path).release()


def test_reading_needs_no_lock(tmp_path: Path) -> None:
    writer = Checkpoints(tmp_path)
    writer.save(0, {"arrays": {"a": 1.5}})
    assert read(tmp_path).arrays["arrays/a"] == 1.5
    writer.close()
