"""Rows of a batch: each row is one population of one instance.

There is one flat axis rather than two, because XLA on CPU is slow with arrays of many axes.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.random import fold_in
from jaxtyping import Array

from popgibbs.data import Data
from popgibbs.smc.built import BuiltSampler
from popgibbs.smc.population import Population


def over_rows(function: Callable[..., Any], *in_axes: int | None) -> Callable[..., Any]:
    """Map a function of one population over the rows of a batch; arguments that are not arrays are passed unchanged."""
    return eqx.filter_vmap(function, in_axes=tuple(None if axis is None else eqx.if_array(axis) for axis in in_axes))


def over_populations(
    function: Callable[[BuiltSampler, Data, Population], Any],
    sampler: BuiltSampler,
    batch: Data,
    population: Population,
) -> Any:
    """Apply a function of one population to all populations of all instances."""
    num_populations = population.log_evidence.shape[1]
    found = over_rows(function, None, 0, 0)(sampler, rows_of(batch, num_populations), into_rows(population))
    return into_instances(found, 0, num_populations)


def row_keys(keys: Array, num_populations: int) -> Array:
    """The key of every population, from the instance's key and the population's index."""
    numbers = jnp.arange(num_populations)
    return jax.vmap(lambda key: jax.vmap(lambda number: fold_in(key, number))(numbers))(keys).reshape(-1)


def fold_in_rows(keys: Array, number: Any) -> Array:
    return jax.vmap(lambda key: fold_in(key, number))(keys)


def rows_of(batch: Data, num_populations: int) -> Data:
    """The data that each row sees."""
    if num_populations == 1:
        return batch
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, num_populations, axis=0), batch)


def into_rows(tree: Any) -> Any:
    """From axes (instance, population, ...) to (row, ...)."""
    return jax.tree.map(lambda leaf: jnp.reshape(leaf, (-1, *leaf.shape[2:])), tree)


def into_instances(tree: Any, axis: int, num_populations: int) -> Any:
    """From rows along an axis to (instance, population)."""
    return jax.tree.map(lambda leaf: leaf.reshape(*leaf.shape[:axis], -1, num_populations, *leaf.shape[axis + 1 :]), tree)
