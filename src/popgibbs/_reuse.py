"""Compiled programs that are shared by equal functions, so that a second call compiles nothing.

JAX finds a compiled program by the identity of the function. Optimisers and simulators are often made anew for every
call, as in `fit(..., optimiser=optax.adam(1e-3))`, and then differ in identity but not in content: the same code with the
same numbers in its closure. What cannot be compared by content is compared by identity, which at worst compiles again.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from threading import RLock
from types import FunctionType, MethodType
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer

T = TypeVar("T")

MOST = 16  # programs that are kept; the one that was used longest ago is forgotten first
_KEPT: OrderedDict[Hashable, Any] = OrderedDict()
_LOCK = RLock()


def reused(make: Callable[..., T], *arguments: Any, of: Any = None) -> T:
    """`make(*arguments)`, or the result of an earlier call whose arguments had equal content.

    `of` stands for the arguments in the comparison, where the result depends on less than all of them.
    """
    key = (make, content(arguments if of is None else of), jax.local_device_count(), jax.dtypes.canonicalize_dtype(float))
    with _LOCK:
        if key in _KEPT:
            _KEPT.move_to_end(key)
            return _KEPT[key]
    made = make(*arguments)  # without the lock, because it may wait for others
    with _LOCK:
        made = _KEPT.setdefault(key, made)
        if len(_KEPT) > MOST:
            _KEPT.popitem(last=False)
        return made


class computed_once(Generic[T]):
    """A property that is computed when it is first used, as `functools.cached_property`, but never under a lock.

    Before Python 3.12 that one holds one lock for all objects of a class. A thread that computes it and waits for
    NumPyro's handlers, which another thread holds while it waits for the property, would wait forever.
    """

    def __init__(self, compute: Callable[[Any], T]):
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        # Once it is in the instance's dict, Python no longer asks here.
        return instance.__dict__.setdefault(self._name, self._compute(instance))


def shape_of(tree: Any) -> Any:
    """A tree without the numbers in its trainable arrays, for programs that take these numbers as inputs."""
    abstract = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), eqx.filter(tree, eqx.is_inexact_array))
    return eqx.filter(tree, eqx.is_inexact_array, inverse=True), jax.tree.leaves(abstract)


class _Identity:
    """An object compared by identity; holding it keeps its identity from being used again."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def content(value: Any, outer: tuple[Any, ...] = ()) -> Hashable:
    """A hashable that is equal for values that behave alike; `outer` are the values around it, which may be cyclic."""
    for depth, seen in enumerate(outer):
        if seen is value:
            return ("inside", depth)
    inside = (*outer, value)

    def parts(*values: Any) -> tuple[Hashable, ...]:
        return tuple(content(part, inside) for part in values)

    if isinstance(value, bool | int | float | complex | str | bytes | type | np.dtype | np.generic | None):
        return (type(value), repr(value) if isinstance(value, float | complex) else value)
    if isinstance(value, Tracer):
        return _Identity(value)
    if isinstance(value, np.ndarray | jax.Array):
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return ("key", str(value.dtype), content(jax.random.key_data(value)))
        array = np.asarray(value)
        return ("array", str(array.dtype), array.shape, array.tobytes())
    if isinstance(value, FunctionType):
        try:
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
        except ValueError:  # a variable that has no value yet
            return _Identity(value)
        closed = parts(*cells, value.__defaults__, value.__kwdefaults__)
        return (value.__code__, _Identity(value.__globals__), value.__qualname__, *closed)
    if isinstance(value, MethodType):
        return ("method", *parts(value.__func__, value.__self__))
    if isinstance(value, partial):
        return ("partial", *parts(value.func, value.args, value.keywords))
    if isinstance(value, eqx.Module):
        leaves, structure = jax.tree.flatten(value)
        return ("module", structure, *parts(*leaves))
    if isinstance(value, tuple | list):
        return (type(value), *parts(*value))
    if isinstance(value, Mapping):
        return (type(value), *((name, content(value[name], inside)) for name in value))
    try:
        hash(value)
    except TypeError:
        return _Identity(value)
    return ("object", type(value), value)
