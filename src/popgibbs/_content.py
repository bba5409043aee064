"""Comparing functions and other static values by content rather than identity.

JAX finds a compiled program by the identity of its functions. That fails twice: optimisers, simulators and models are
often made anew and then differ in identity but not in content; and a function whose global constant has changed since it
was compiled is still the same object.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import PurePath
from threading import RLock
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

_PLAIN = (bool, int, float, complex, str, bytes, range, type, Enum, PurePath, np.dtype, np.generic)
_PLAIN += (type(None), type(Ellipsis))
_FIXED = (BuiltinFunctionType, ModuleType, np.ufunc, type(RLock()))
_LARGE = 1024  # bytes


class Identity:
    """An object compared by identity; holding it keeps its identity from being used again."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def content(value: Any) -> Hashable:
    """A hashable that is equal for values that behave alike, as far as can be known.

    Objects that may change, and large arrays, are compared by identity, as JAX does.
    """
    return _content(value, Identity, _LARGE, ())


def strict_content(value: Any) -> Hashable:
    """A hashable that is equal only for values that behave alike: objects that may change are never equal."""
    return _content(value, lambda _: object(), None, ())


def _content(value: Any, unknown: Callable[[Any], Hashable], large: int | None, outer: tuple[Any, ...]) -> Hashable:
    """`outer` are the values around this one, which may refer to each other in a circle."""
    for depth, seen in enumerate(outer):
        if seen is value:
            return ("inside", depth)

    def of(part: Any) -> Hashable:
        return _content(part, unknown, large, (*outer, value))

    if isinstance(value, _PLAIN):
        return (type(value), repr(value) if isinstance(value, float | complex) else value)
    if isinstance(value, _FIXED) or (hasattr(value, "__wrapped__") and not isinstance(value, FunctionType)):
        return Identity(value)  # such as a function that the user compiled
    if isinstance(value, Tracer):
        return Identity(value)
    if isinstance(value, np.ndarray | jax.Array):
        return Identity(value) if large is not None and value.nbytes > large else _array(value)
    if isinstance(value, FunctionType):
        return _function(value, of, unknown)
    if isinstance(value, MethodType):
        return ("method", of(value.__func__), of(value.__self__))
    if isinstance(value, partial):
        return ("partial", of(value.func), of(value.args), of(value.keywords))
    if isinstance(value, tuple | list | frozenset):
        return (type(value), *map(of, value))
    if isinstance(value, Mapping):
        return (type(value), *((name, of(value[name])) for name in value))
    leaves, structure = jax.tree.flatten(value)
    if not jax.tree_util.treedef_is_leaf(structure):  # such as an `eqx.Module` or a NumPyro distribution
        return ("tree", structure, *map(of, leaves))
    if is_dataclass(value) and type(value).__dataclass_params__.frozen:  # pyright: ignore[reportAttributeAccessIssue]
        return (type(value), *(of(getattr(value, field.name)) for field in fields(value)))
    return unknown(value)


def _array(value: Any) -> Hashable:
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return ("key", str(value.dtype), _array(jax.random.key_data(value)))
    array = np.asarray(value)
    return ("array", str(array.dtype), array.shape, array.tobytes())


def _function(function: FunctionType, of: Callable[[Any], Hashable], unknown: Callable[[Any], Hashable]) -> Hashable:
    """The code of a function, its defaults, and the values of all variables that it refers to."""
    try:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a variable that has no value yet
        return unknown(function)
    found = function.__globals__
    used = {name: found[name] for name in sorted(set(_names(function.__code__))) if name in found}

    def of_global(value: Any) -> Hashable:
        # Functions of other modules are taken to stay as they are; following all of them would lead through libraries.
        elsewhere = isinstance(value, FunctionType) and value.__globals__ is not found
        return Identity(value) if elsewhere else of(value)

    referred = ((name, of_global(value)) for name, value in used.items())
    return (function.__code__, Identity(found), function.__qualname__, *map(of, cells)), (
        of(function.__defaults__),
        of(function.__kwdefaults__),
        *referred,
    )


def _names(code: CodeType) -> Iterator[str]:
    """The names in a function, and in functions inside of it, that may be those of global variables."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
