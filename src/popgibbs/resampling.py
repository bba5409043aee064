"""Resampling schemes: from log-weights to ancestor indices with expected counts L·w̄.

Each scheme is unbiased, E[#{l: a_l = i}] = L·w̄_i, and never picks a particle of weight zero. Systematic, stratified and
residual resampling give every particle back once when all weights are equal.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from popgibbs.typing import Ancestors, PRNGKey, Weights
from popgibbs.weights import normalise


def _invert(weights: Weights, positions: Float[Array, " draw"]) -> Ancestors:
    """The particle in whose share of the interval [0, L) each position lies."""
    num_particles = weights.shape[0]
    # A share that ends within rounding of an integer ends on it, so that equal weights are shares of exactly one.
    edges = jnp.cumsum(weights) * num_particles
    edges = jnp.where(jnp.abs(edges - jnp.round(edges)) < 1e-6 * num_particles, jnp.round(edges), edges)
    # A particle of weight zero has no share at all: a parallel sum may round its edge away from the one before it.
    edges = jax.lax.cummax(jnp.where(weights > 0, edges, 0.0))
    # Rounding must not carry a position past the last particle that has weight.
    positions = jnp.minimum(positions, jnp.nextafter(edges[-1], jnp.zeros(())))
    method = "compare_all" if num_particles <= 64 else "scan_unrolled"
    return jnp.searchsorted(edges, positions, side="right", method=method)


def _in_cells(num_cells: int, uniform: Float[Array, "..."]) -> Float[Array, " cell"]:
    """A position in each cell [i, i + 1), to which rounding must not add its end."""
    cells = jnp.arange(num_cells, dtype=uniform.dtype)
    return jnp.minimum(cells + uniform, jnp.nextafter(cells + 1, cells))


def systematic(key: PRNGKey, log_weights: Weights) -> Ancestors:
    """One uniform shift of an even grid: the least variance in practice, and the default."""
    num_particles = log_weights.shape[0]
    return _invert(normalise(log_weights), _in_cells(num_particles, jax.random.uniform(key)))


def stratified(key: PRNGKey, log_weights: Weights) -> Ancestors:
    """One uniform draw in each cell of an even grid."""
    num_particles = log_weights.shape[0]
    return _invert(normalise(log_weights), _in_cells(num_particles, jax.random.uniform(key, (num_particles,))))


def multinomial(key: PRNGKey, log_weights: Weights) -> Ancestors:
    """Independent draws (the paper's appendix)."""
    num_particles = log_weights.shape[0]
    return _invert(normalise(log_weights), num_particles * jax.random.uniform(key, (num_particles,)))


def residual(key: PRNGKey, log_weights: Weights) -> Ancestors:
    """⌊L·w̄⌋ copies of each particle for certain; the rest are drawn from what remains."""
    num_particles = log_weights.shape[0]
    expected = num_particles * normalise(log_weights)
    certain = jnp.floor(expected + 1e-6 * num_particles)
    remainder = jnp.maximum(expected - certain, 0.0)
    total = jnp.sum(remainder)
    draws = multinomial(key, jnp.where(total > 0, jnp.log(remainder), log_weights))
    slots = jnp.arange(num_particles)
    copies = jnp.searchsorted(jnp.cumsum(certain), slots, side="right")
    return jnp.where(slots < jnp.sum(certain), jnp.minimum(copies, num_particles - 1), draws)
