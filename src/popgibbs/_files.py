"""Atomic writes of files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path next to a file, which replaces the file at the end; a failure leaves an older file unchanged.

    It has the file's suffix, because figure writers choose their format by it.
    """
    partial = path.with_name(f"partial-{path.name}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
