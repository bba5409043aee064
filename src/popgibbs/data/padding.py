"""Padding of instances and batches; no other module lengthens arrays.

Instances of different sizes are padded along their declared plates by *repeating a real element*, so that a padded
element never produces a number that a real one could not. A mask says which elements are real. Batches are padded in the
same way, by repeating their last row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from popgibbs._typing import Values
from popgibbs.data.instances import Axes, Data, plates, sizes_of

MAX_BUCKETS = 4


@dataclass(frozen=True)
class Bucket:
    """Instances padded to one shape, and their places in the user's list."""

    data: Data
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def is_padded(self) -> bool:
        return not all(np.all(mask) for mask in self.data.mask.values())


def filled_rows(count: int, size: int) -> np.ndarray:
    """Indices that pad `count` rows to `size` rows by repeating the last one."""
    return np.minimum(np.arange(size), count - 1)


def pad(values: Values, axes: Axes, padded: Mapping[str, int]) -> Values:
    """The instance with its declared axes lengthened to the padded sizes by repeating their last element."""
    lengthened = {}
    for name, array in values.items():
        for axis, plate in enumerate(axes.get(name, ())):
            if plate is not None and array.shape[axis] != padded[plate]:
                array = lengthen(array, axis, padded[plate])
        lengthened[name] = array
    return lengthened


def lengthen(array: Any, axis: int, size: int) -> Any:
    """A NumPy or JAX array with an axis lengthened by repeating its last element."""
    widths = [(0, size - array.shape[axis] if i == axis % array.ndim else 0) for i in range(array.ndim)]
    return (jnp if isinstance(array, jax.Array) else np).pad(array, widths, mode="edge")


def into_buckets(instances: Sequence[Values], axes: Axes) -> list[Bucket]:
    """Instances grouped and padded to a few sizes; for each plate, at most `MAX_BUCKETS` that occur."""
    sizes = [sizes_of(instance, axes, f"instance {i}") for i, instance in enumerate(instances)]
    rounded = {plate: _round_up(np.array([size[plate] for size in sizes])) for plate in plates(axes)}
    groups: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(instances)):
        groups.setdefault(tuple(int(rounded[plate][i]) for plate in rounded), []).append(i)
    buckets = []
    for shape, members in sorted(groups.items()):
        padded = dict(zip(rounded, shape, strict=True))
        rows = [
            Data(pad(instances[i], axes, padded), {p: np.arange(padded[p]) < sizes[i][p] for p in padded})
            for i in members
        ]
        _check_stackable(rows, members)
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
        buckets.append(Bucket(stacked, np.array(members)))
    return buckets


def _round_up(sizes: np.ndarray) -> np.ndarray:
    """Each size rounded up to one of at most MAX_BUCKETS quantiles of all sizes."""
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, MAX_BUCKETS + 1)[1:], method="higher"))
    if len(np.unique(sizes)) <= MAX_BUCKETS:
        edges = np.unique(sizes)
    return edges[np.searchsorted(edges, sizes)]


def _check_stackable(rows: Sequence[Data], members: Sequence[int]) -> None:
    first = rows[0].values
    for row, i in zip(rows, members, strict=True):
        if set(row.values) != set(first):
            raise ValueError(f"instance {i} has the arrays {sorted(row.values)}, but others have {sorted(first)}")
        for name, value in row.values.items():
            if value.shape != first[name].shape:
                raise ValueError(
                    f"instance {i}: '{name}' has shape {value.shape} after padding, but instance {members[0]} has "
                    f"{first[name].shape}; declare the axis that varies in `data=`"
                )


def unpad(array: np.ndarray, axis: int, mask: np.ndarray) -> np.ndarray:
    """The real elements of an axis."""
    return np.compress(mask, array, axis=axis)
