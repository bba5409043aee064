"""Types that several layers share."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Key, UInt32

Values: TypeAlias = dict[str, Any]
"""JAX or NumPy arrays by name: values of sites, or the arrays of an instance."""

LogProbs: TypeAlias = dict[str, Array]
"""Unsummed log-probabilities by site name: one number per plate element."""

Weights: TypeAlias = Float[Array, " particle"]
Ancestors: TypeAlias = Int[Array, " particle"]
PRNGKey: TypeAlias = Key[Array, ""]
KeyLike: TypeAlias = PRNGKey | UInt32[Array, " words"]
"""A random key as users pass it, from `jax.random.key` or the legacy `jax.random.PRNGKey`."""
Elements: TypeAlias = Float[Array, " element"]
Mask: TypeAlias = Bool[Array, " element"]

Model: TypeAlias = Callable[..., Any]
"""A NumPyro program for one instance and one particle, called with the instance's arrays by keyword."""

UpdateModel: TypeAlias = Literal["every_block", "every_sweep"]
"""When θ gets a gradient: at the initial step and after every block, or after the last block of every sweep."""

Instance: TypeAlias = Mapping[str, Any]
"""The arrays of one instance by the model's argument names."""

Simulator: TypeAlias = Callable[[PRNGKey], Instance]

Resampler: TypeAlias = Callable[[PRNGKey, Weights], Ancestors]
"""From log-weights to the index of each new particle's ancestor, with expected counts L·w̄."""


@runtime_checkable
class Tracker(Protocol):
    """A function that is called with the metrics of a training step, by name."""

    def __call__(self, step: int, metrics: Mapping[str, Any]) -> None: ...
