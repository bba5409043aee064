"""Data files: archives that NumPy writes are read; others are refused in one sentence before memory is allocated."""

import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from popgibbs.data import npz, parse_axes, read_instances

AXES = parse_axes({"x": "points"})
X = np.random.default_rng(0).normal(size=(2, 3, 2))


def npy(array: np.ndarray, **header: Any) -> bytes:
    """An array as a member of an archive, with parts of its header replaced by others."""
    file = BytesIO()
    declared = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape, **header}
    np.lib.format.write_array_header_2_0(file, declared)
    return file.getvalue() + array.tobytes()


def archive(path: Path, compression: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def edited(path: Path, place: int, value: bytes, signature: bytes = b"PK\x01\x02") -> Path:
    """An archive of `x` with other bytes at a place in its directory, or in the part with another signature."""
    content = bytearray(saved(path, x=X).read_bytes())
    begin = content.rindex(signature) + place
    content[begin : begin + len(value)] = value
    path.write_bytes(content)
    return path


def flipped(path: Path) -> Path:
    content = bytearray(saved(path, x=X).read_bytes())
    content[content.index(X.tobytes()[:8]) + 5] ^= 1
    path.write_bytes(content)
    return path


def deflated_noise(path: Path) -> Path:
    np.savez_compressed(path, x=X)
    content = bytearray(path.read_bytes())
    content[200:220] = bytes(20)
    path.write_bytes(content)
    return path


def twice(path: Path) -> Path:
    with zipfile.ZipFile(archive(path, x=npy(X)), "a") as file, pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr("x.npy", npy(X))
    return path


def other_member(path: Path) -> Path:
    with zipfile.ZipFile(saved(path, x=X), "a") as file:
        file.writestr("notes.txt", "mine")
    return path


# Files that are read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", "<f2", "g", "<i8", ">i4", "u1", "?"])
def test_numbers_of_every_dtype_are_read_back(tmp_path: Path, save: Callable[..., None], dtype: str) -> None:
    x = (10 * X).astype(dtype)
    save(tmp_path / "data.npz", x=np.asfortranarray(x))
    found = read_instances(tmp_path / "data.npz", AXES)
    assert [instance["x"].tolist() for instance in found] == x.astype(found[0]["x"].dtype).tolist()
    assert all(instance["x"].dtype.isnative and instance["x"].dtype.itemsize <= 4 for instance in found)


def test_ragged_instances_are_split_by_their_lengths(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    found = read_instances(saved(tmp_path / "data.npz", x=x, x_lengths=np.array([1, 3, 2], np.uint64)), AXES)
    assert [instance["x"].tolist() for instance in found] == [x[:1].tolist(), x[1:4].tolist(), x[4:].tolist()]


# Files that are refused -------------------------------------------------------------------------------------------------

HUGE = 10**12

REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no-file": (lambda path: path, "there is no file"),
    "directory": (lambda path: path.mkdir() or path, "is not a NumPy archive"),
    "text": (lambda path: path.write_text("x") and path, "is not a NumPy archive"),
    "bit-flip": (flipped, "is damaged in 'x'"),
    "zlib": (deflated_noise, "is damaged in 'x'"),
    "end-of-file": (lambda path: edited(path, 20, struct.pack("<II", 10**6, 10**6)), "is damaged"),
    "encrypted": (lambda path: edited(path, 8, b"\1"), "'x' is encrypted"),
    "patched": (lambda path: edited(path, 8, b"\x20"), "is damaged in 'x'"),
    "compression": (lambda path: edited(path, 10, b"\x63"), "'x' is compressed in a way that NumPy does not use"),
    "directory-of-members": (lambda path: edited(path, 0, b"PK\x09\x09"), "is damaged; write it again"),
    "zip-version": (lambda path: edited(path, 6, b"\xff"), "is damaged; write it again"),
    "local-name": (lambda path: edited(path, 30, b"y", b"PK\x03\x04"), "is damaged in 'x'"),
    "twice": (twice, "holds the array 'x' twice"),
    "other-member": (other_member, "holds 'notes.txt', which is not an array"),
    "magic": (lambda path: archive(path, x=b"NUMPY" + npy(X)), "is damaged in 'x'"),
    "npy-version": (lambda path: archive(path, x=npy(X).replace(b"\x02\x00", b"\x09\x00", 1)), "is damaged in 'x'"),
    "header-text": (lambda path: archive(path, x=npy(X, shape=[2, "three"])), "is damaged in 'x'"),
    "long-header": (lambda path: archive(path, x=npy(X, descr=[("a" * 20000, "<f8")])), "is damaged in 'x'"),
    "negative": (lambda path: archive(path, x=npy(X, shape=(-2, -3, 2))), r"'x' is declared as \(-2, -3, 2\) of float64"),
    "huge": (lambda path: archive(path, x=npy(X, shape=(HUGE, 3, 2))), r"declared as \(1000000000000, 3, 2\) of float64"),
    "wraps-around": (lambda path: archive(path, x=npy(X, shape=(2**61 + 2, 3, 2**3))), "is damaged: 'x' is declared as"),
    "rows-of-nothing": (lambda path: archive(path, x=npy(np.zeros(0), shape=(HUGE, 0, 2))), "which holds no numbers"),
    "short": (lambda path: archive(path, x=npy(X)[:-8]), "which is not its size"),
    "long": (lambda path: archive(path, x=npy(X) + b"12345678"), "which is not its size"),
    "pickled": (lambda path: archive(path, x=npy(X, descr="|O")), "'x' has dtype object, which is not numeric"),
    "strings": (lambda path: saved(path, x=np.full((2, 3), "a")), "'x' has dtype <U1, which is not numeric"),
    "complex": (lambda path: saved(path, x=X + 1j), "'x' has dtype complex128, which is not numeric"),
    "one-number": (lambda path: saved(path, x=1.0), r"'x' has shape \(\), but it needs an axis for the instances and"),
    "one-axis": (
        lambda path: saved(path, x=np.zeros(9)),
        r"'x' has shape \(9,\), but it needs an axis for",
    ),
    "flat-number": (lambda path: saved(path, x=1.0, x_lengths=[1]), r"but it needs the declared axes \('points',\)"),
    "one-length": (lambda path: saved(path, x=np.zeros((6, 2)), x_lengths=6), "must be a list of positive whole numbers"),
    "real-lengths": (lambda path: saved(path, x=np.zeros((6, 2)), x_lengths=[2.5, 3.5]), "must be a list of positive"),
    "lengths-wrap": (
        lambda path: saved(path, x=np.zeros((6, 2)), x_lengths=np.array([2**64 - 1, 7], np.uint64)),
        "adds up to 18446744073709551622",
    ),
    "counts": (lambda path: saved(path, x=X, y=np.zeros((3, 1))), "different numbers of instances"),
    "many-names": (lambda path: saved(path, x=X, **{f"{i}{'y' * 99}": X for i in range(50)}), "and 45 more"),
    "name-of-lines": (lambda path: archive(path, **{"x": npy(X), "a\nb": npy(X)}), r"has the arrays \['a\\nb'\]"),
    "int64": (lambda path: saved(path, x=np.array([[1, 2**40]])), "holds 1099511627776, which does not fit into int32"),
    "overflow": (lambda path: saved(path, x=[[1.0, -1e39]]), "holds -1e.39, which does not fit into float32"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_bad_file_is_refused_in_one_sentence_without_allocating_memory(tmp_path: Path, kind: str) -> None:
    make, message = REFUSED[kind]
    path = make(tmp_path / "bad.npz")
    axes = parse_axes({"x": "points", "y": ()}) if kind == "counts" else AXES
    tracemalloc.start()
    with pytest.raises(ValueError, match=message) as refused:
        read_instances(path, axes)
    asked = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert asked < 10**7
    sentence = str(refused.value).replace(str(path), "FILE")
    assert "\n" not in sentence
    assert len(sentence) < 300


def test_an_archive_that_unpacks_to_a_thousand_times_its_size_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(tmp_path / "bomb.npz", zipfile.ZIP_DEFLATED, x=npy(np.zeros((10, 1000, 100), np.int8)))
    assert len(read_instances(path, AXES)) == 10
    monkeypatch.setattr(npz, "SMALL", 10**5)
    with pytest.raises(ValueError, match=r"more than 100 times its size.*write it uncompressed with numpy.savez"):
        read_instances(path, AXES)
    assert len(read_instances(saved(path, x=np.zeros((10, 1000, 100), np.int8)), AXES)) == 10


@pytest.mark.parametrize("shape", [(10, 10**6), (50_000, 1)], ids=["numbers", "instances"])
def test_an_archive_that_does_not_fit_into_memory_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    path = saved(tmp_path / "data.npz", x=np.zeros(shape, np.int8))
    monkeypatch.setattr(npz, "memory_bytes", lambda: 2.0 * 10**7)
    with pytest.raises(ValueError, match="more than half of this machine's memory; split it into several files"):
        read_instances(path, AXES)
