"""Damaged data files: bytes, directories of archives, headers of arrays, members, numbers, bombs."""

import struct
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from damage import EXTREME_NUMBERS, EXTREME_VALUES, OF_BYTES, Random, chosen
from popgibbs.data import SUFFIX, parse_axes


class Sound(NamedTuple):
    """The contents of an undamaged file."""

    arrays: dict[str, np.ndarray]
    axes: Any
    compressed: bool


def _sound() -> list[Sound]:
    random = np.random.default_rng(0)
    points, flat = parse_axes({"x": "points"}), random.normal(size=(9, 2))
    lengths = np.array([4, 2, 3])
    two = {"x": random.integers(0, 9, size=(4, 5)), "y": random.normal(size=4).astype(np.float32)}
    return [
        Sound({"x": random.normal(size=(3, 5, 2))}, points, False),
        Sound({"x": random.normal(size=(3, 50, 2)).astype(np.float32)}, points, True),
        Sound({"x": flat, "x_lengths": lengths}, points, False),
        Sound({"x": flat, "x_lengths": lengths.astype(np.uint8)}, points, True),
        Sound(two, parse_axes({"x": "points", "y": ()}), False),
    ]


SOUND = _sound()


def content(sound: Sound) -> bytes:
    """The file as NumPy writes it."""
    file = BytesIO()
    (np.savez_compressed if sound.compressed else np.savez)(file, **sound.arrays)
    return file.getvalue()


def expected(arrays: dict[str, np.ndarray], axes: Any) -> list[dict[str, np.ndarray]]:
    """The instances in an undamaged file, in double precision, by the simplest code."""
    columns = {}
    for name in axes:
        array, lengths = arrays[name], arrays.get(name + SUFFIX)
        ends = np.arange(1, len(array)) if lengths is None else np.cumsum(lengths, dtype=np.int64)[:-1]
        pieces = np.split(array, ends) if len(array) else []
        columns[name] = [piece[0] for piece in pieces] if lengths is None else pieces
    return [{name: column[i] for name, column in columns.items()} for i in range(len(next(iter(columns.values()))))]


def npy(array: np.ndarray, header: dict[str, Any] | None = None) -> bytes:
    """An array as NumPy writes it, or with entries of its header replaced."""
    if header is None:
        file = BytesIO()
        np.lib.format.write_array(file, array)
        return file.getvalue()
    declared = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape, **header}
    text = (repr(declared) + "\n").encode("latin1", "replace")
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + array.tobytes()


def archive(members: list[tuple[str, bytes]], compressed: bool) -> bytes:
    file = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about duplicate names
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as written:
            for name, member in members:
                written.writestr(name, member)
    return file.getvalue()


# The records of an archive's directory: the offsets and sizes of their fields.
RECORDS = {
    b"PK\x03\x04": ((4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2), (30, 1)),
    b"PK\x01\x02": ((4, 2), (6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (42, 4)),
    b"PK\x05\x06": ((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)),
}


def directory_edited(random: Random, sound: Sound) -> bytes:
    """Change fields of the archive's directory: flags (1 is encrypted), methods, sizes, checksums, offsets."""
    damaged = bytearray(content(sound))
    for _ in range(int(random.integers(1, 3))):
        signature = chosen(random, tuple(RECORDS))
        place, size = chosen(random, RECORDS[signature])
        begin = damaged.rfind(signature) if random.random() < 0.5 else damaged.find(signature)
        value = int(chosen(random, EXTREME_NUMBERS)) if random.random() < 0.7 else int(random.integers(2**16))
        if begin >= 0:
            damaged[begin + place : begin + place + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")
    return bytes(damaged)


def _shape(random: Random) -> Any:
    shape = tuple(chosen(random, EXTREME_NUMBERS) for _ in range(int(random.integers(0, 5))))
    return shape if random.random() < 0.8 else chosen(random, EXTREME_VALUES)


DTYPES = ("<f8", ">f8", "<f4", "<f2", "<i8", ">i4", "|u1", "|b1", "<c16", "<U3", "|S8", "|O")
STRANGE_DTYPES = ("|V8", "<M8[s]", "<U0", "<f3", "f8,i4", [("a", "<f8")], ("<f8", (10**6,)), "<U999999999999", None, 3)
ODD_DTYPES = (*DTYPES, *STRANGE_DTYPES)


def header_edited(random: Random, sound: Sound) -> bytes:
    """Change the declaration in one array's header and nothing else."""
    edits: list[Callable[[], dict[str, Any]]] = [
        lambda: {"shape": _shape(random)},
        lambda: {"descr": chosen(random, ODD_DTYPES)},
        lambda: {"fortran_order": chosen(random, (True, *EXTREME_VALUES))},
        lambda: {str(chosen(random, EXTREME_VALUES)): 0},
        lambda: {"descr": chosen(random, ODD_DTYPES), "shape": _shape(random)},
    ]
    edited = str(chosen(random, tuple(sound.arrays)))
    members = []
    for name, array in sound.arrays.items():
        member = npy(array, edits[random.integers(len(edits))]()) if name == edited else npy(array)
        if name == edited and random.random() < 0.3:  # damage the header's bytes as well
            member = member[:6] + OF_BYTES[str(chosen(random, tuple(OF_BYTES)))](random, member[6:100]) + member[100:]
        members.append((f"{name}.npy", member))
    return archive(members, sound.compressed)


NAMES = ("y", "x_lengths", "X", "", "x/y", "../x", "x\n", "é", "x" * 5000, "x.npy", "\1", "a b")


def members_edited(random: Random, sound: Sound) -> bytes:
    """Rename, drop, duplicate or swap arrays, or add something else."""
    members = [(f"{name}.npy", npy(array)) for name, array in sound.arrays.items()]
    name, member = members[random.integers(len(members))]
    other = f"{chosen(random, NAMES)}{chosen(random, ('.npy', '/', '.txt'))}"
    kinds: list[Callable[[], list[tuple[str, bytes]]]] = [
        lambda: [(other if (a, b) == (name, member) else a, b) for a, b in members],
        lambda: [(a, b) for a, b in members if a != name],
        lambda: [*members, (name, member)],
        lambda: [*members, (other, random.bytes(50))],
        lambda: [(a, b) for (a, _), (_, b) in zip(members, members[::-1], strict=True)],
        lambda: [*members, *((f"{i}.npy", member) for i in range(200))],
        lambda: [(a, b"" if a == name else b) for a, b in members],
        lambda: [(a, archive(members, True) if a == name else b) for a, b in members],
    ]
    return archive(kinds[random.integers(len(kinds))](), sound.compressed)


def numbers_edited(random: Random, sound: Sound) -> bytes:
    """An undamaged file whose arrays have other dtypes, shapes or values."""
    arrays = dict(sound.arrays)
    name = str(chosen(random, tuple(arrays)))
    array = arrays[name]
    kind = int(random.integers(6))
    if kind == 0:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array = array.astype(np.dtype(str(chosen(random, DTYPES))))
    elif kind == 1:
        array = np.asarray(array, np.float64)
        array.flat[random.integers(array.size)] = chosen(random, (np.nan, np.inf, -np.inf, 1e39, -1e300, 1e-310))
    elif kind == 2:
        array = np.asarray(array, np.int64)
        array.flat[random.integers(array.size)] = chosen(random, (2**31, -(2**31) - 1, 2**62, -(2**63), 2**31 - 1, 0))
    elif kind == 3:
        array = array.reshape(array.shape[: random.integers(array.ndim + 1)] + (-1,) * int(array.ndim > 1))
    else:
        array = (
            array[tuple(slice(random.integers(size + 1)) for size in array.shape)] if random.random() < 0.8 else array[0]
        )
    arrays[name] = array
    if array.dtype.hasobject:
        return archive([(f"{name}.npy", npy(np.zeros(3), {"descr": "|O"}))], sound.compressed)
    return content(sound._replace(arrays=arrays))


@cache
def _bomb(rows: int, columns: int) -> bytes:
    """An archive of zeros, written piece by piece so that making it takes no memory."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as written, written.open("x.npy", "w") as member:
        member.write(npy(np.zeros(0, np.int8), {"shape": (rows, 2, columns)}))
        for _ in range(2 * rows * columns // 10**6):
            member.write(bytes(10**6))
    return file.getvalue()


def bomb(random: Random, sound: Sound) -> bytes:
    """A small file that would unpack into far more bytes, or into more instances than memory holds."""
    kinds: list[Callable[[], bytes]] = [
        lambda: _bomb(2, 10**9 // 4),
        lambda: _bomb(10**8, 1),
        lambda: archive([("x.npy", npy(np.zeros(0), {"shape": (10**12, 0, 2)}))], True),
        lambda: archive([("x.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + bytes(2**20))], True),
        lambda: archive([("x.npy", npy(np.zeros((2, 2)), {"shape": (10**12, 3, 2)}))], True),
        lambda: archive([("x.npy", npy(np.zeros((2, 2)), {"shape": (2**61 + 2, 2, 2)}))], True),
    ]
    return kinds[random.integers(len(kinds))]()


OF_ARCHIVES: dict[str, Callable[[Random, Sound], bytes]] = {
    "directory edited": directory_edited,
    "header edited": header_edited,
    "members edited": members_edited,
    "other numbers": numbers_edited,
    "bomb": bomb,
}
KINDS = (*OF_BYTES, *OF_ARCHIVES)


def write(random: Random, kind: str, path: Path) -> Sound:
    """Write a damaged file; returns its original contents."""
    sound = SOUND[random.integers(len(SOUND))]
    path.write_bytes(OF_BYTES[kind](random, content(sound)) if kind in OF_BYTES else OF_ARCHIVES[kind](random, sound))
    return sound
