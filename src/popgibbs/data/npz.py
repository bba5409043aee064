"""Reading instances from a NumPy archive: the model's arguments by name, ragged ones flat with their lengths.

Archives are not trusted: headers are checked before memory is allocated. Every array must be as large as its header
declares, and all of them together must fit into memory.
"""

import math
import os
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib import format as npy

from popgibbs._typing import Values
from popgibbs.data.instances import Axes, as_instances

SUFFIX = "_lengths"
NOT_LENGTHS = "must be a list of positive whole numbers, one per instance"

INSTANCE_BYTES = 500  # of memory per array of an instance, in addition to its numbers
SMALL = 2**28  # bytes to which any archive may unpack
MOST_COMPRESSED = 100  # a larger archive may unpack to this many times its size; real data rarely reach a tenth of it


def read_instances(path: str | Path, axes: Axes) -> list[Values]:
    """Read `x` of shape (instances, points, ...), or `x` of shape (all points, ...) with `x_lengths`.

    Raises:
        ValueError: The file is damaged, does not fit into memory, or does not hold the model's arguments.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"there is no file {path}")
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not a NumPy archive; write it with numpy.savez")
    columns = _columns(path, axes)
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(f"{path}: the arrays hold different numbers of instances: {counts}")
    count = next(iter(counts.values()))
    try:
        return as_instances([{name: column[i] for name, column in columns.items()} for i in range(count)], axes)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


class _Refused(Exception):
    """A message about an archive, as opposed to the exceptions that parsers raise on damaged bytes."""


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype


def _columns(path: Path, axes: Axes) -> dict[str, list[np.ndarray]]:
    """Each array, split into instances."""
    try:
        with _parsing(""):
            archive = zipfile.ZipFile(path)
        with archive:
            members = _members(archive)
            unpacked = sum(member.file_size for member in members.values())
            _check_compression(path, unpacked)
            _check_memory(unpacked)
            headers = {name: _header(archive, name, member) for name, member in members.items()}
            counted = _check_shapes(headers, axes)
            _check_memory(unpacked + INSTANCE_BYTES * counted)
            arrays = {name: _array(archive, name, member) for name, member in members.items()}
        return {name: _split(name, arrays[name], arrays.get(name + SUFFIX)) for name in sorted(axes)}
    except _Refused as refused:
        raise ValueError(f"{path}{refused}") from None


@contextmanager
def _parsing(what: str) -> Iterator[None]:
    """Turn the dozen kinds of exceptions that zipfile, zlib and NumPy raise on damaged bytes into one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about files that are refused anyway
            yield
    except MemoryError:
        raise _Refused(" does not fit into memory; split it into several files") from None
    except Exception:
        raise _Refused(f" is damaged{what}; write it again with numpy.savez") from None


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        quoted = _quoted([name])
        if name == member.filename:
            raise _Refused(f" holds {quoted}, which is not an array; write it with numpy.savez")
        if name in members:
            raise _Refused(f" holds the array {quoted} twice; write it with numpy.savez")
        if member.flag_bits & 1:
            raise _Refused(f": the array {quoted} is encrypted; write it with numpy.savez")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _Refused(
                f": the array {quoted} is compressed in a way that NumPy does not use; write it with numpy.savez"
            )
        members[name] = member
    return members


def _quoted(names: Iterable[str], most: int = 5) -> str:
    """Names for a message, shortened if they are many or long."""
    listed = sorted(names)
    quoted = ", ".join(repr(name if len(name) <= 30 else f"{name[:30]}…") for name in listed[:most])
    return quoted if len(listed) <= most else f"{quoted} and {len(listed) - most} more"


def _header(archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> _Header:
    with _parsing(f" in {_quoted([name])}"), archive.open(member) as file:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)
        begin = file.tell()
    if dtype.kind not in "fiub":
        raise _Refused(f": {_quoted([name])} has dtype {str(dtype)[:50]}, which is not numeric")
    if min(shape, default=0) < 0 or member.file_size != begin + math.prod(shape) * dtype.itemsize:
        raise _Refused(f" is damaged: {_quoted([name])} is declared as {_short(shape)} of {dtype}, which is not its size")
    return _Header(shape, dtype)


def _short(shape: tuple[int, ...]) -> str:
    return str(shape) if len(str(shape)) <= 60 else f"{str(shape)[:60]}…"


def _check_shapes(headers: dict[str, _Header], axes: Axes) -> int:
    """Refuse arrays that the model does not take; returns the number of arrays of all instances together."""
    names = {name for name in headers if not (name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in headers)}
    if missing := set(axes) - names:
        raise _Refused(f" lacks the arrays [{_quoted(missing)}]; it has [{_quoted(headers)}]")
    if unknown := names - set(axes):
        raise _Refused(f" has the arrays [{_quoted(unknown)}], which the model does not take; it takes {sorted(axes)}")
    counted = 0
    for name in names:
        shape, lengths = headers[name].shape, headers.get(name + SUFFIX)
        if lengths is not None and (len(lengths.shape) != 1 or lengths.dtype.kind not in "iu"):
            raise _Refused(f": '{name}{SUFFIX}' {NOT_LENGTHS}")
        if len(shape) < max(1, len(axes[name]) + (lengths is None)):
            first = "" if lengths is not None else "an axis for the instances and "
            raise _Refused(f": '{name}' has shape {_short(shape)}, but it needs {first}the declared axes {axes[name]}")
        if shape[0] and not math.prod(shape):  # rows without bytes, whose number the file's size does not bound
            raise _Refused(f": '{name}' has shape {_short(shape)}, which holds no numbers")
        counted += (headers[name] if lengths is None else lengths).shape[0]
    return counted


def _check_compression(path: Path, unpacked: int) -> None:
    if unpacked > max(SMALL, MOST_COMPRESSED * path.stat().st_size):
        raise _Refused(
            f" would unpack to {unpacked / 2**30:.1f} GB, more than {MOST_COMPRESSED} times its size; if that is "
            "intended, write it uncompressed with numpy.savez"
        )


def _check_memory(needed: int) -> None:
    if needed > memory_bytes() / 2:  # numbers are copied once, into the dtype that JAX computes with
        raise _Refused(
            f" would take {needed / 2**30:.1f} GB, more than half of this machine's memory; split it into several files"
        )


def memory_bytes() -> float:
    """The memory of this machine in bytes, or infinity if it is unknown."""
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) if hasattr(os, "sysconf") else math.inf


def _array(archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> np.ndarray:
    with _parsing(f" in {_quoted([name])}"), archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)  # to its last byte, at which the checksum is compared


def _split(name: str, array: np.ndarray, lengths: np.ndarray | None) -> list[np.ndarray]:
    if lengths is None:
        return [array[i, ...] for i in range(len(array))]
    if (lengths < 1).any():
        raise _Refused(f": '{name}{SUFFIX}' {NOT_LENGTHS}")
    total = sum(lengths.tolist())  # Python's integers do not wrap around
    if total != len(array):
        raise _Refused(f": '{name}{SUFFIX}' adds up to {total}, but '{name}' has shape {array.shape}")
    return np.split(array, np.cumsum(lengths.astype(np.int64))[:-1])
