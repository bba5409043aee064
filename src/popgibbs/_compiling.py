"""How the library's programs are compiled."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np

from popgibbs._content import content
from popgibbs._reuse import computed_once

T = TypeVar("T")

# Without XLA's newer emitters for fused loops, programs compile in two thirds of the time. Sampling runs as fast, but
# gradients up to a third slower, so training does not use this (`docs/explanation/performance.md`).
_FAST = {"xla_cpu_use_fusion_emitters": False}
_NOT_OPTIMISED = {"xla_backend_optimization_level": 0}


@cache
def compiler_options() -> dict[str, Any]:
    """Options with which programs compile faster, as far as this version of XLA has them."""
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=_FAST).lower().compile()
    except Exception:  # JAX raises its own error for an unknown option, which differs between versions
        return {}
    return _FAST


def jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jax.jit` with the options of the library; for use while samplers run, not at import."""
    return jax.jit(function, compiler_options=compiler_options(), **options)


def jit_once(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jax.jit` for a program that runs once, for which fast compilation matters more than fast execution."""
    return jax.jit(function, compiler_options={**compiler_options(), **_NOT_OPTIMISED}, **options)


def initialised(make: Callable[[Any], T], key: Any) -> T:
    """Modules that `make` builds from a key, with all of their arrays from one program instead of one per array."""
    static: list[Any] = []

    def arrays(key: Any) -> Any:
        made, rest = eqx.partition(make(key), eqx.is_array)
        static.append(rest)
        return made

    made = jit_once(arrays)(key)
    return eqx.combine(made, static[0])


class Program:
    """A function whose arguments hold arrays and static values, such as a sampler; compiled once for every kind of them.

    Like `eqx.filter_jit`, with the options of the library, and with abstract arrays in `trace`.
    """

    def __init__(self, function: Callable[..., Any], compile: Callable[..., Any] = jit):
        self._function = function
        self._compile = compile

    @computed_once
    def _compiled(self) -> Any:
        def call(static: "_Static", arrays: Any) -> Any:
            return self._function(*eqx.combine(arrays, jax.tree.unflatten(static.structure, static.leaves)))

        call.__name__ = self._function.__name__
        return self._compile(call, static_argnums=0)

    def __call__(self, *inputs: Any) -> Any:
        return self._compiled(*self.divided(*inputs))

    def trace(self, *inputs: Any) -> jax.stages.Traced:
        """The program before its compilation; calls with such inputs use what is done with it."""
        return self._compiled.trace(*self.divided(*inputs))

    @staticmethod
    def divided(*inputs: Any) -> "tuple[_Static, Any]":
        """The static values of the inputs, hashable, and their arrays."""
        arrays, static = eqx.partition(inputs, _is_array)
        return _Static(*jax.tree.flatten(static)), arrays


class _Static:
    """The static values of a program's inputs, equal if they have the same content."""

    def __init__(self, leaves: list[Any], structure: Any):
        self.leaves = leaves
        self.structure = structure
        self._key = (content(leaves), structure)
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)
