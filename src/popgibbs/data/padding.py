"""Padding of instances and batches; no other module lengthens arrays.

Instances of different sizes are padded along their declared plates by *repeating a real element*, so that a padded
element never produces a number that a real one could not. A mask says which elements are real. Batches are padded in the
same way, by repeating their last row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from popgibbs._typing import Values
from popgibbs.data.instances import Axes, Data, plates, sizes_of

Sizes = Mapping[str, Sequence[int]]  # by plate, the sizes to which instances are padded


@dataclass(frozen=True)
class Bucket:
    """Instances padded to one shape, and their places in the user's list."""

    data: Data
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def num_real(self) -> int:
        """Real elements, or combinations of elements of several plates."""
        counts = [np.ones(len(self), int), *(mask.sum(axis=1) for mask in self.data.mask.values())]
        return int(np.prod(counts, axis=0).sum())

    @property
    def num_padded(self) -> int:
        """Elements with those that padding added."""
        return len(self) * int(np.prod([mask.shape[1] for mask in self.data.mask.values()]))


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


def into_buckets(
    instances: Sequence[Values], axes: Axes, sizes: Sizes | None = None, *, can_pad: bool = True
) -> list[Bucket]:
    """Instances grouped and padded to few shapes, each of which is compiled for.

    Instances of one shape stay as they are. Others are padded to at most two shapes, whose sizes are on a fixed grid so
    that other calls have them too. `sizes` replaces the grid of some plates; then every instance is padded to it.
    Instances that cannot be padded are grouped by their exact shapes.
    """
    exact = _shapes(instances, axes)
    shapes = _padded_shapes(exact, plates(axes), sizes or {}) if can_pad else exact
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, shape in enumerate(shapes.tolist()):
        groups.setdefault(tuple(shape), []).append(i)
    buckets = []
    for shape, members in sorted(groups.items()):
        padded = dict(zip(plates(axes), shape, strict=True))
        rows = [
            Data(
                pad(instances[i], axes, padded),
                {plate: np.arange(padded[plate]) < size for plate, size in zip(padded, exact[i], strict=True)},
            )
            for i in members
        ]
        _check_stackable(rows, members)
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
        buckets.append(Bucket(stacked, np.array(members)))
    return buckets


def needs_padding(instances: Sequence[Values], axes: Axes, sizes: Sizes) -> bool:
    """Whether `into_buckets` lengthens an instance."""
    exact = _shapes(instances, axes)
    return bool(np.any(_padded_shapes(exact, plates(axes), sizes) != exact))


def num_shapes(instances: Sequence[Values], axes: Axes) -> int:
    """How many shapes the instances have before padding."""
    return len(np.unique(_shapes(instances, axes), axis=0))


def parse_sizes(sizes: Mapping[str, Any], axes: Axes) -> dict[str, tuple[int, ...]]:
    """The user's sizes for padding, checked."""
    if unknown := sorted(set(sizes) - set(plates(axes))):
        raise ValueError(f"sizes= names the plates {unknown}, but `data=` declares {list(plates(axes))}")
    for plate, given in sizes.items():
        valid = isinstance(given, Sequence) and given and all(isinstance(n, Integral) and int(n) > 0 for n in given)
        if not valid:
            raise ValueError(
                f"sizes={{'{plate}': {given!r}}} must be a list of positive whole numbers, such as [50, 100]"
            )
    return {plate: tuple(sorted(map(int, given))) for plate, given in sizes.items()}


def _shapes(instances: Sequence[Values], axes: Axes) -> np.ndarray:
    """The size of every plate; rows are instances, columns plates."""
    found = [sizes_of(instance, axes, f"instance {i}") for i, instance in enumerate(instances)]
    return np.array([[size[plate] for plate in plates(axes)] for size in found]).reshape(len(instances), -1)


def _padded_shapes(exact: np.ndarray, names: Sequence[str], sizes: Sizes) -> np.ndarray:
    """The shape to which each instance is padded; rows are instances, columns plates."""
    rounded = exact.copy()
    for column, plate in enumerate(names):
        if plate in sizes:
            rounded[:, column] = _round_to(exact[:, column], plate, sizes[plate])
    free = [column for column, plate in enumerate(names) if plate not in sizes]
    if len(np.unique(exact[:, free], axis=0)) > 1:
        rounded[:, free] = _two_shapes(exact[:, free])
    return rounded


def on_grid(size: int, per_doubling: int = 2) -> int:
    """A size rounded up to 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: powers of two and the numbers halfway between them.

    `per_doubling=4` is the finer grid 1, 2, ..., 8, 10, 12, 14, 16, 20, ...
    """
    step = max((1 << (size - 1).bit_length()) // (2 * per_doubling), 1)
    return -(-size // step) * step


def _round_to(exact: np.ndarray, plate: str, sizes: Sequence[int]) -> np.ndarray:
    grid = np.unique(np.asarray(sizes))
    if exact.max() > grid[-1]:
        raise ValueError(
            f"instance {exact.argmax()} has {exact.max()} elements along '{plate}', more than the largest of "
            f"sizes={{'{plate}': {grid.tolist()}}}; add a larger size"
        )
    return grid[np.searchsorted(grid, exact)]


def _two_shapes(exact: np.ndarray) -> np.ndarray:
    """The largest size of every plate, on the grid, for all instances but those that fit into a smaller shape.

    The smaller shape has the sizes of the largest divided by powers of two, which leaves few choices, so that other
    calls make the same one. It is the one that adds the fewest elements in all.
    """
    largest = np.array([on_grid(int(size)) for size in exact.max(axis=0)])
    halvings = [[on_grid(-(-int(size) >> k)) for k in range(int(size).bit_length())] for size in largest]
    shapes, counts = np.unique(exact, axis=0, return_counts=True)

    def cost(smaller: np.ndarray) -> float:
        fits = counts[np.all(shapes <= smaller, axis=1)].sum()
        return fits * smaller.prod(dtype=float) + (counts.sum() - fits) * largest.prod(dtype=float)

    smaller = min((np.array(shape) for shape in product(*halvings)), key=cost)
    return np.where(np.all(exact <= smaller, axis=1)[:, None], smaller, largest)


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
