"""Results that are made once: compiled programs that equal functions share, and properties of objects."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax

from popgibbs._content import strict_content

T = TypeVar("T")

MOST = 16  # programs that are kept; the one that was used longest ago is forgotten first
_KEPT: OrderedDict[Hashable, Any] = OrderedDict()
_LOCK = RLock()


def reused(make: Callable[..., T], *arguments: Any, of: Any = None) -> T:
    """`make(*arguments)`, or the result of an earlier call whose arguments had equal content.

    `of` stands for the arguments in the comparison, where the result depends on less than all of them.
    """
    key = (
        make,
        strict_content(arguments if of is None else of),
        jax.local_device_count(),
        jax.dtypes.canonicalize_dtype(float),
    )
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
