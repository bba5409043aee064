"""Files that are there whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place beside a file to write it to, moved there at the end; a failure leaves an older file as it was.

    It ends like the file, because writers of figures go by the ending.
    """
    partial = path.with_name(f"partial-{path.name}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
