"""Instances in a NumPy archive: the model's arguments by name, ragged ones flat with their lengths."""

import zipfile
from pathlib import Path

import numpy as np

from popgibbs.instances import Axes, as_instances
from popgibbs.typing import Values

SUFFIX = "_lengths"


def read_instances(path: str | Path, axes: Axes) -> list[Values]:
    """Read `x` of shape (instances, points, ...), or `x` of shape (all points, ...) with `x_lengths`."""
    arrays = _read(Path(path))
    names = {name for name in arrays if not (name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in arrays)}
    if missing := sorted(set(axes) - names):
        raise ValueError(f"{path} lacks the arrays {missing}; it has {sorted(arrays)}")
    if unknown := sorted(names - set(axes)):
        raise ValueError(f"{path} has the arrays {unknown}, which the model does not take; it takes {sorted(axes)}")
    columns = {name: _split(path, name, arrays[name], arrays.get(name + SUFFIX)) for name in sorted(names)}
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(f"{path}: the arrays hold different numbers of instances: {counts}")
    count = next(iter(counts.values()))
    try:
        return as_instances([{name: column[i] for name, column in columns.items()} for i in range(count)], axes)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.exists():
        raise ValueError(f"there is no file {path}")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not a NumPy archive; write it with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def _split(path: str | Path, name: str, array: np.ndarray, lengths: np.ndarray | None) -> list[np.ndarray]:
    if lengths is None:
        return list(array)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 1).any():
        raise ValueError(f"{path}: '{name}{SUFFIX}' must be a list of positive whole numbers, one an instance")
    if array.ndim == 0 or lengths.sum() != len(array):
        raise ValueError(f"{path}: '{name}{SUFFIX}' adds up to {lengths.sum()}, but '{name}' has shape {array.shape}")
    return np.split(array, np.cumsum(lengths)[:-1])
