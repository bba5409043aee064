"""Users' instances of data and their declared axes.

An instance is a dict of the model's keyword arguments. `axes={"x": ("points",)}` says that the leading axis of `x` is
the plate `points`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from popgibbs._typing import Values

Axes = dict[str, tuple[str | None, ...]]


class Data(eqx.Module):
    """The arrays of one instance, `data["x"]`, and which elements of a plate are real, `data.mask["points"]`."""

    values: Values
    mask: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def sizes(self) -> list[int]:
        """The number of elements of each declared plate."""
        return [mask.shape[0] for mask in self.mask.values()]

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def keys(self) -> Any:
        return self.values.keys()


def parse_axes(data: Mapping[str, str | Sequence[str | None]]) -> Axes:
    """The user's declaration with every entry as a tuple."""
    return {name: (axes,) if isinstance(axes, str) else tuple(axes) for name, axes in data.items()}


def plates(axes: Axes) -> tuple[str, ...]:
    """The declared plates, in order of appearance."""
    return tuple(dict.fromkeys(plate for names in axes.values() for plate in names if plate is not None))


def complete(values: Values, axes: Axes) -> Data:
    """An instance in which every element is real."""
    sizes = sizes_of(values, axes, "the instance")
    arrays = {name: jnp.asarray(value) for name, value in values.items()}
    return Data(arrays, {plate: jnp.ones(size, bool) for plate, size in sizes.items()})


def as_instances(data: Any, axes: Axes) -> list[Values]:
    """Users' instances as a list of dicts: from a list of dicts, a dict of stacked arrays, or a list of bare arrays."""
    if isinstance(data, Mapping):
        stacked = {name: _array(value, f"'{name}'") for name, value in data.items()}
        counts = {name: value.shape[0] if value.ndim else None for name, value in stacked.items()}
        if len(set(counts.values())) != 1 or None in counts.values():
            raise ValueError(
                f"stacked data must share their leading axis, one entry per instance; the leading sizes are {counts}"
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
                raise ValueError(f"instance {i} has a different form from instance 0; pass all as dicts or all as arrays")
        if instances and not isinstance(instances[0], Mapping):
            if len(axes) != 1:
                raise ValueError(
                    f"bare arrays are ambiguous for the arguments {sorted(axes)}; pass each instance as a dict"
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
        raise ValueError(f"{what} cannot be made an array; its rows must be numbers and of equal length") from None
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{what} has dtype {array.dtype}, which is not numeric")
    return array


def _canonical(array: np.ndarray, what: str) -> np.ndarray:
    """The array in the dtype that JAX computes with, 32 bits wide unless `jax_enable_x64` is set; numbers must fit."""
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
    sizes_of(checked, axes, where)
    return checked


def largest(instances: Sequence[Values], axes: Axes) -> Values:
    """The instance with the most elements, which tests a model best."""
    return max(instances, key=lambda instance: sum(np.size(instance[name]) for name in axes))


def sizes_of(values: Mapping[str, Any], axes: Axes, where: str) -> dict[str, int]:
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
                raise ValueError(
                    f"{where}: '{name}' has {size} elements along '{plate}', but other arrays have {sizes[plate]}"
                )
    return sizes
