"""Instances of data: declared axes, ragged sizes padded into a few buckets, masks.

An instance is a dict of the model's keyword arguments. `axes={"x": ("points",)}` says that the leading axis of `x` is
the plate `points`. Instances of different sizes are padded by *repeating a real element*, so that a padded element never
produces a number that a real one could not, and carry a mask that says which elements are real.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from popgibbs._typing import PRNGKey, Simulator, Values

Axes = dict[str, tuple[str | None, ...]]

MAX_BUCKETS = 4


class Data(eqx.Module):
    """The arrays of one instance, `data["x"]`, and which elements of a plate are real, `data.mask["points"]`."""

    values: Values
    mask: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def sizes(self) -> list[int]:
        """How many elements each declared plate has."""
        return [mask.shape[0] for mask in self.mask.values()]

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def keys(self) -> Any:
        return self.values.keys()


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


def parse_axes(data: Mapping[str, str | Sequence[str | None]]) -> Axes:
    """The user's declaration with every entry as a tuple."""
    return {name: (axes,) if isinstance(axes, str) else tuple(axes) for name, axes in data.items()}


def plates(axes: Axes) -> tuple[str, ...]:
    """The declared plates, in order of appearance."""
    return tuple(dict.fromkeys(plate for names in axes.values() for plate in names if plate is not None))


def mask_from_sizes(sizes: Mapping[str, Any], padded: Mapping[str, int]) -> dict[str, Any]:
    return {plate: jnp.arange(padded[plate]) < size for plate, size in sizes.items()}


def complete(values: Values, axes: Axes) -> Data:
    """An instance in which every element is real."""
    sizes = _sizes(values, axes, "the instance")
    arrays = {name: jnp.asarray(value) for name, value in values.items()}
    return Data(arrays, {plate: jnp.ones(size, bool) for plate, size in sizes.items()})


def as_instances(data: Any, axes: Axes) -> list[Values]:
    """A list of dicts from what users bring: a list of dicts, a dict of stacked arrays, or a list of bare arrays."""
    if isinstance(data, Mapping):
        stacked = {name: _array(value, f"'{name}'") for name, value in data.items()}
        counts = {name: value.shape[0] if value.ndim else None for name, value in stacked.items()}
        if len(set(counts.values())) != 1 or None in counts.values():
            raise ValueError(
                f"stacked data must share their leading axis, one entry an instance; the leading sizes are {counts}"
            )
        count = next(iter(counts.values())) or 0
        instances = [{name: value[i] for name, value in stacked.items()} for i in range(count)]
    else:
        try:
            instances = list(data)
        except TypeError:
            given = "None" if data is None else type(data).__name__
            raise ValueError(
                f"instances must be a list of dicts, a dict of arrays or a list of arrays, not {given}"
            ) from None
        for i, instance in enumerate(instances):
            if isinstance(instance, Mapping) != isinstance(instances[0], Mapping):
                raise ValueError(f"instance {i} is of another form than instance 0; give all as dicts or all as arrays")
        if instances and not isinstance(instances[0], Mapping):
            if len(axes) != 1:
                raise ValueError(
                    f"bare arrays are ambiguous for the arguments {sorted(axes)}; give each instance as a dict"
                )
            (name,) = axes
            instances = [{name: value} for value in instances]
    if not instances:
        raise ValueError("there are no instances")
    return [_checked(instance, axes, f"instance {i}") for i, instance in enumerate(instances)]


def _array(value: Any, what: str) -> np.ndarray:
    if np.ma.is_masked(value):
        raise ValueError(f"{what} has masked values; drop or impute them first")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{what} cannot be made an array; its rows must be numbers, as many in each") from None
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{what} has dtype {array.dtype}, which is not numeric")
    return array


def _canonical(array: np.ndarray, what: str) -> np.ndarray:
    """The array in the dtype that JAX computes with, 32 bits wide unless it is told otherwise; numbers must fit."""
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        raise ValueError(f"{what} has values that are not finite; drop or impute them first")
    native = np.dtype(np.float64) if array.dtype == np.longdouble else array.dtype.newbyteorder("=")
    dtype = jax.dtypes.canonicalize_dtype(native)
    if dtype.itemsize < array.dtype.itemsize and array.size:
        limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        for extreme in (array.min(), array.max()):
            if not limits.min <= extreme <= limits.max:
                raise ValueError(
                    f"{what} holds {extreme}, which does not fit into {dtype}; rescale it, or set jax_enable_x64"
                )
    return array.astype(dtype)


def _checked(instance: Mapping[str, Any], axes: Axes, where: str) -> Values:
    if missing := sorted(set(axes) - set(instance)):
        raise ValueError(f"{where} lacks the arrays {missing} that `data=` declares; it has {sorted(map(str, instance))}")
    named = {name: f"{where}: '{name}'" for name in instance}
    checked = {name: _canonical(_array(value, named[name]), named[name]) for name, value in instance.items()}
    _sizes(checked, axes, where)
    return checked


def largest(instances: Sequence[Values], axes: Axes) -> Values:
    """The instance with the most elements, which shows the most about a model."""
    return max(instances, key=lambda instance: sum(np.size(instance[name]) for name in axes))


def _sizes(values: Mapping[str, Any], axes: Axes, where: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, names in axes.items():
        shape = np.shape(values[name])
        if len(shape) < len(names):
            raise ValueError(f"{where}: '{name}' has shape {shape}, but its axes are declared as {names}")
        for plate, size in zip(names, shape, strict=False):
            if plate is None:
                continue
            if size == 0:
                raise ValueError(f"{where}: '{name}' has no elements along '{plate}'")
            if sizes.setdefault(plate, size) != size:
                raise ValueError(f"{where}: '{name}' has {size} elements along '{plate}', other arrays {sizes[plate]}")
    return sizes


def pad(values: Values, axes: Axes, padded: Mapping[str, int]) -> Values:
    """The instance with its declared axes lengthened to the padded sizes by repeating their last element."""
    lengthened = {}
    for name, array in values.items():
        for axis, plate in enumerate(axes.get(name, ())):
            if plate is not None and (extra := padded[plate] - array.shape[axis]):
                widths = [(0, extra if i == axis else 0) for i in range(array.ndim)]
                array = np.pad(array, widths, mode="edge")
        lengthened[name] = array
    return lengthened


def into_buckets(instances: Sequence[Values], axes: Axes) -> list[Bucket]:
    """Instances grouped by padded size: a few sizes, each that of a real instance."""
    sizes = [_sizes(instance, axes, f"instance {i}") for i, instance in enumerate(instances)]
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
            raise ValueError(f"instance {i} has the arrays {sorted(row.values)}, others have {sorted(first)}")
        for name, value in row.values.items():
            if value.shape != first[name].shape:
                raise ValueError(
                    f"instance {i}: '{name}' has shape {value.shape} after padding, instance {members[0]} has "
                    f"{first[name].shape}; declare the axis that varies in `data=`"
                )


def unpad(array: np.ndarray, axis: int, mask: np.ndarray) -> np.ndarray:
    """The real elements of an axis."""
    return np.compress(mask, array, axis=axis)


@runtime_checkable
class Source(Protocol):
    """Where training batches come from; a step's batch depends on the key and the step only."""

    @property
    def is_padded(self) -> bool: ...

    def batch(self, key: PRNGKey, step: int, batch_size: int) -> Data: ...


class Simulated:
    """Fresh instances from a simulator `key -> instance`, drawn on the device."""

    is_padded = False  # all have one size

    def __init__(self, simulator: Simulator, axes: Axes):
        self._axes = axes
        self._draw = jax.jit(jax.vmap(lambda key: complete(dict(simulator(key)), axes)))

    def batch(self, key: PRNGKey, step: int, batch_size: int) -> Data:
        return self._draw(jax.random.split(key, batch_size))


class Finite:
    """A finite set of instances, in an order that is shuffled anew in every epoch.

    A batch comes from one bucket; where a bucket does not fill its last batch, instances from its beginning do.
    """

    def __init__(self, instances: Sequence[Values], axes: Axes, seed: int = 0):
        self._buckets = into_buckets(instances, axes)
        self._seed = seed
        self._shuffle: tuple[int, int] | None = None  # the epoch and the batch size that `_batches` are for
        self._batches: list[tuple[int, np.ndarray]] = []

    @property
    def is_padded(self) -> bool:
        return any(bucket.is_padded for bucket in self._buckets)

    def batch(self, key: PRNGKey, step: int, batch_size: int) -> Data:
        del key
        per_epoch = sum(-(-len(bucket) // batch_size) for bucket in self._buckets)
        epoch, place = divmod(step, per_epoch)
        if self._shuffle != (epoch, batch_size):
            self._shuffle, self._batches = (epoch, batch_size), self._shuffled(epoch, batch_size)
        bucket, rows = self._batches[place]
        return jax.tree.map(lambda leaf: leaf[rows], self._buckets[bucket].data)

    def _shuffled(self, epoch: int, batch_size: int) -> list[tuple[int, np.ndarray]]:
        generator = np.random.default_rng((self._seed, epoch))
        batches = []
        for index, bucket in enumerate(self._buckets):
            order = generator.permutation(len(bucket))
            count = -(-len(bucket) // batch_size)
            batches += [(index, rows) for rows in np.resize(order, (count, batch_size))]
        return [batches[i] for i in generator.permutation(len(batches))]
