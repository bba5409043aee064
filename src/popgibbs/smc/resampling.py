"""Resampling schemes: from log-weights to ancestor indices with expected counts L·w̄.

Each scheme is unbiased, E[#{l: a_l = i}] = L·w̄_i, and never picks a particle of weight zero. When all weights are equal,
systematic, stratified and residual resampling return every particle once.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from popgibbs._random import unrolled
from popgibbs._typing import Ancestors, PRNGKey, Weights
from popgibbs.smc.weights import normalise

_MARGIN = 1e-6  # of a share of one: more than the rounding of a share, far less than a sample can show
_FEW = 64  # up to this many particles, comparing all pairs is faster than a search


class _Fixed(NamedTuple):
    """Fixed-point numbers of 64 bits: float32 numbers near 10⁶ are 1/16 apart, too coarse for shares of about one."""

    whole: Int[Array, "..."]
    fraction: UInt[Array, "..."]  # in units of 2⁻³²

    @classmethod
    def of(cls, whole: Int[Array, "..."], rest: Float[Array, "..."]) -> "_Fixed":
        """The sum of an integer and a small number."""
        below = jnp.floor(rest)
        return cls(whole + below.astype(jnp.int32), ((rest - below) * 2.0**32).astype(jnp.uint32))

    def at_or_below(self, other: "_Fixed") -> Bool[Array, "..."]:
        return (self.whole < other.whole) | ((self.whole == other.whole) & (self.fraction <= other.fraction))

    def cumulative(self) -> "_Fixed":
        """Exact partial sums. The sum of fractions wraps around where it carries."""
        fraction = jnp.cumsum(self.fraction, dtype=jnp.uint32)
        return _Fixed(jnp.cumsum(self.whole + (fraction < self.fraction), dtype=jnp.int32), fraction)


def _invert(weights: Weights, cells: Int[Array, " draw"], offsets: Float[Array, "..."]) -> Ancestors:
    """The particle whose share of the interval [0, L) contains each position, given as a cell and an offset into it."""
    num_particles = weights.shape[0]
    # The sums are exact: a particle of weight zero ends where the one before it does, and has no share.
    edges = _Fixed.of(jnp.zeros(weights.shape, jnp.int32), num_particles * weights).cumulative()
    # Rounded shares sum to slightly more or less than L. Stretching the positions alike spreads the error evenly.
    excess = (edges.whole[-1] - num_particles) + edges.fraction[-1] * 2.0**-32
    # Equal shares are one only up to rounding; a position away from the ends of its cell falls into the right share.
    offsets = jnp.clip(offsets, _MARGIN, 1 - _MARGIN)
    positions = _Fixed.of(cells, offsets + excess * ((cells + offsets) / num_particles))
    last = jnp.max(jnp.where(weights > 0, jnp.arange(num_particles), 0))
    return jnp.minimum(_count_below(edges, positions), last)


def _count_below(edges: _Fixed, positions: _Fixed) -> Ancestors:
    """How many of the sorted edges are at or below each position."""
    num_edges = edges.whole.shape[0]
    if num_edges <= _FEW:
        each = jax.tree.map(lambda leaf: leaf[:, None], positions)
        return jnp.sum(edges.at_or_below(each), axis=-1)

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) // 2
        below = jax.tree.map(lambda leaf: leaf[middle], edges).at_or_below(positions)
        return jnp.where(below & (low < high), middle + 1, low), jnp.where(below, high, middle)

    bounds = jnp.zeros_like(positions.whole), jnp.full_like(positions.whole, num_edges)
    return jax.lax.fori_loop(0, num_edges.bit_length(), halve, bounds)[0]


def systematic(key: PRNGKey, log_weights: Weights) -> Ancestors:
    """Systematic resampling, the default: one uniform shift of an even grid, which has the least variance in practice.

    Args:
        key: A random key.
        log_weights: Unnormalised log-weights with axis (particle,).

    Returns:
        The index of each new particle's ancestor, with axis (particle,) and expected counts L·w̄.

    Examples:
        >>> log_weights = jnp.log(jnp.array([0.5, 0.5, 0.0, 0.0]))
        >>> pg.systematic(key, log_weights).tolist()
        [0, 0, 1, 1]
    """
    cells = jnp.arange(log_weights.shape[0])
    return _invert(normalise(log_weights), cells, jax.random.uniform(unrolled(key)))


def stratified(key: PRNGKey, log_weights: Weights) -> Ancestors:
    """Stratified resampling: one uniform draw in each cell of an even grid.

    Args:
        key: A random key.
        log_weights: Unnormalised log-weights with axis (particle,).

    Returns:
        The index of each new particle's ancestor, with axis (particle,) and expected counts L·w̄.

    Examples:
        >>> pg.stratified(key, jnp.zeros(4)).tolist()
        [0, 1, 2, 3]
    """
    cells = jnp.arange(log_weights.shape[0])
    return _invert(normalise(log_weights), cells, jax.random.uniform(unrolled(key), cells.shape))


def multinomial(key: PRNGKey, log_weights: Weights) -> Ancestors:
    """Multinomial resampling, the scheme of the paper's appendix: independent draws in proportion to the weights.

    Args:
        key: A random key.
        log_weights: Unnormalised log-weights with axis (particle,).

    Returns:
        The index of each new particle's ancestor, with axis (particle,) and expected counts L·w̄.

    Examples:
        >>> ancestors = pg.multinomial(key, jnp.array([0.0, -jnp.inf, 0.0]))
        >>> bool((ancestors == 1).any())
        False
    """
    num_particles = log_weights.shape[0]
    key_cell, key_offset = jax.random.split(unrolled(key))
    cells = jax.random.randint(key_cell, (num_particles,), 0, num_particles)
    return _invert(normalise(log_weights), cells, jax.random.uniform(key_offset, cells.shape))


def residual(key: PRNGKey, log_weights: Weights) -> Ancestors:
    """Residual resampling: ⌊L·w̄⌋ copies of each particle, and independent draws from the remainders.

    Args:
        key: A random key.
        log_weights: Unnormalised log-weights with axis (particle,).

    Returns:
        The index of each new particle's ancestor, with axis (particle,) and expected counts L·w̄.

    Examples:
        >>> pg.residual(key, jnp.log(jnp.array([0.75, 0.25, 0.0, 0.0]))).tolist()
        [0, 0, 0, 1]
    """
    num_particles = log_weights.shape[0]
    expected = num_particles * normalise(log_weights)
    # A share that rounding keeps just below an integer counts as that integer.
    certain = jnp.floor(expected + _MARGIN * jnp.maximum(expected, 1.0))
    remainder = jnp.maximum(expected - certain, 0.0)
    draws = multinomial(key, jnp.where(jnp.sum(remainder) > 0, jnp.log(remainder), log_weights))
    slots = jnp.arange(num_particles)
    ends = jnp.cumsum(certain.astype(jnp.int32))
    copies = jnp.searchsorted(ends, slots, side="right")
    return jnp.where(slots < ends[-1], jnp.minimum(copies, num_particles - 1), draws)
