"""Several modes of a conditional of one number in each element, and a mixture of Gaussians at them.

The density is looked at on a grid of the prior's quantiles and far outside of them, a search begins at the highest local
maxima, and each mode gets the mass that Laplace's method gives it.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy.special import ndtri

from popgibbs._random import unrolled
from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import BlockConditional, Coordinates
from popgibbs.proposals.base import BoundKernel
from popgibbs.proposals.newton import mode_and_precision
from popgibbs.proposals.search import mode_by_values

_MOST_MODES = 3
_STRETCH = 1.3  # of the prior's quantiles, so that the grid reaches its tails
_FAR = np.array([4.0, 6.0, 9.0, 14.0, 22.0, 40.0, 100.0])  # prior units, for data that contradict the prior
_NUM_LOOKED_AT = 32  # quantiles, to tell whether there are several modes
_NUM_STEPS = 10  # of Newton's method, which is tried
_RELEVANT = 8.0  # nats below the highest mode
_DIP = 0.3  # nats between two modes
_DROPS = (0.1, 3.0)  # nats from the mode to one standard deviation, for a Gaussian a half
_SAME = 1.0  # standard deviations, below which two modes are one
_WIDER = 3.0  # the wide part's standard deviation, relative to a mode's
_BROAD = 1.5  # the broad part's, in prior units; it reaches modes that the grid missed
_LOG_ROOT = 0.5 * np.log(2 * np.pi)


class Modes(NamedTuple):
    """The modes of each element's density, in prior units."""

    loc: Float[Array, "element mode"]
    log_scale: Float[Array, "element mode"]
    log_mass: Float[Array, "element mode"]  # by Laplace's method; −inf where there are fewer modes

    @property
    def log_total(self) -> Elements:
        """The logarithm of the integral of each element's density, by Laplace's method."""
        return jax.nn.logsumexp(self.log_mass, axis=-1)


def _grid(num_inside: int) -> np.ndarray:
    inside = _STRETCH * ndtri((np.arange(num_inside) + 0.5) / num_inside)
    return np.concatenate([-_FAR[::-1], inside, _FAR])


def _height(coordinates: Coordinates, position: Float[Array, "element 1"]) -> Elements:
    density = coordinates.log_density(position)
    return jnp.where(jnp.isnan(density), -jnp.inf, density)


def _heights(coordinates: Coordinates, nodes: np.ndarray) -> Float[Array, "node element"]:
    shape = (coordinates.num_elements, 1)
    return jax.lax.map(lambda node: _height(coordinates, jnp.full(shape, node)), jnp.asarray(nodes))


def _peaks(heights: Float[Array, "node element"]) -> Float[Array, "node element"]:
    """The local maxima; −inf elsewhere."""
    outside = jnp.full((1, heights.shape[1]), -jnp.inf)
    before, after = jnp.concatenate([outside, heights[:-1]]), jnp.concatenate([heights[1:], outside])
    return jnp.where((heights >= before) & (heights > after), heights, -jnp.inf)


class Shape(NamedTuple):
    """What the density of any element of one number looks like."""

    several: Bool[Array, ""]  # more than one mode matters
    misjudged: Bool[Array, ""]  # Newton's method misses the mode, or its width


def shape_of(conditional: BlockConditional) -> Shape:
    """What the densities of a block's elements look like on a grid; nothing is found where they have several numbers."""
    coordinates = Coordinates(conditional)
    if coordinates.size != 1:
        return Shape(jnp.zeros((), bool), jnp.zeros((), bool))
    heights = _heights(coordinates, _grid(_NUM_LOOKED_AT))
    top, place = jnp.max(heights, axis=0), jnp.argmax(heights, axis=0)
    numbers = jnp.arange(heights.shape[0])[:, None]
    # The lowest height between the top and each node.
    ahead = jax.lax.cummin(jnp.where(numbers >= place, heights, jnp.inf))
    behind = jax.lax.cummin(jnp.where(numbers <= place, heights, jnp.inf), reverse=True)
    lowest = jnp.where(numbers >= place, ahead, behind)
    peaks = _peaks(heights)
    several = jnp.any((peaks > top - _RELEVANT) & (peaks - lowest > _DIP), axis=0)
    loc, factor = mode_and_precision(coordinates, _NUM_STEPS)
    height = _height(coordinates, loc)
    beside = [_height(coordinates, loc + sign / factor[:, 0]) for sign in (1.0, -1.0)]
    drop = height - jnp.maximum(*beside)
    misjudged = (height < top - _DIP) | ~((drop > _DROPS[0]) & (drop < _DROPS[1]))
    known = conditional.real & (top > -jnp.inf)
    return Shape(jnp.any(several & known), jnp.any(misjudged & known))


def modes_of(coordinates: Coordinates, num_starts: int) -> Modes:
    """The highest modes of each element's conditional, which must have one axis."""
    grid = _grid(num_starts)
    gaps = np.diff(grid, prepend=grid[0] - 1.0, append=grid[-1] + 1.0)
    widths, nodes = jnp.asarray(np.clip(0.5 * np.minimum(gaps[1:], gaps[:-1]), 0.0, 1.0)), jnp.asarray(grid)
    peaks = _peaks(_heights(coordinates, grid))
    top, places = jax.lax.top_k(peaks.T, _MOST_MODES)
    # Where no node has a finite density, the search begins at the prior's centre.
    places = places.at[:, 0].set(jnp.where(top[:, 0] > -jnp.inf, places[:, 0], nodes.shape[0] // 2))
    height = partial(_height, coordinates)
    found = jax.lax.map(lambda at: mode_by_values(height, nodes[at][:, None], widths[at][:, None]), places.T)
    loc, log_scale = found.position[..., 0].T, -jnp.log(found.factor[..., 0, 0].T)
    # A search that begins where the density is zero finds nothing.
    height = found.height.T
    is_found = (top > -jnp.inf) & (height > -jnp.inf) & jnp.isfinite(loc) & jnp.isfinite(log_scale)
    loc, log_scale = jnp.where(is_found, loc, 0.0), jnp.where(is_found, log_scale, 0.0)
    log_mass = jnp.where(is_found, height + log_scale + _LOG_ROOT, -jnp.inf)
    log_mass = log_mass.at[:, 0].set(jnp.where(is_found[:, 0], log_mass[:, 0], -1e10))
    for number in range(1, _MOST_MODES):
        near = jnp.abs(loc[:, :number] - loc[:, number : number + 1]) < _SAME * jnp.exp(log_scale[:, :number])
        again = jnp.any(near & (log_mass[:, :number] > -jnp.inf), axis=-1)
        log_mass = log_mass.at[:, number].set(jnp.where(again, -jnp.inf, log_mass[:, number]))
    return Modes(loc, log_scale, log_mass)


class BoundModes(BoundKernel):
    """A mixture of Gaussians at the modes; a share of the draws is wide, half of them around a mode."""

    def __init__(self, key: PRNGKey, coordinates: Coordinates, modes: Modes, wide: float):
        self.key, self.coordinates = key, coordinates
        real = coordinates.conditional.real[:, None]
        log_weight = jax.nn.log_softmax(modes.log_mass, axis=-1)
        parts = [
            (jnp.log1p(-wide) + log_weight, modes.loc, modes.log_scale),
            (jnp.log(0.5 * wide) + log_weight, modes.loc, modes.log_scale + jnp.log(_WIDER)),
            tuple(jnp.full_like(modes.loc[:, :1], value) for value in (np.log(0.5 * wide), 0.0, np.log(_BROAD))),
        ]
        joined = [jnp.concatenate(columns, axis=-1) for columns in zip(*parts, strict=True)]
        # Padded elements have no factors.
        self.log_weight = joined[0]
        self.loc, self.log_scale = jnp.where(real, joined[1], 0.0), jnp.where(real, joined[2], 0.0)

    def draw(self) -> tuple[Values, Elements]:
        # One draw for everything, because every use of random bits has to be compiled.
        noise = jax.random.normal(unrolled(self.key), (self.loc.shape[0], 2), self.loc.dtype)
        total = jnp.cumsum(jnp.exp(self.log_weight), axis=-1)
        chosen = jnp.argmax(total > jax.scipy.special.ndtr(noise[:, :1]) * total[:, -1:], axis=-1)[:, None]
        loc, log_scale = (jnp.take_along_axis(part, chosen, axis=-1) for part in (self.loc, self.log_scale))
        position = loc + jnp.exp(log_scale) * noise[:, 1:]
        return self.coordinates.values(position), self._log_q(position)

    def score(self, values: Values) -> Elements:
        return self._log_q(self.coordinates.position(values))

    def _log_q(self, position: Float[Array, "element 1"]) -> Elements:
        deviation = (position - self.loc) * jnp.exp(-self.log_scale)
        log_q = jax.nn.logsumexp(self.log_weight - 0.5 * deviation**2 - self.log_scale - _LOG_ROOT, axis=-1)
        log_q -= self.coordinates.log_volume(position)
        return jnp.where(self.coordinates.conditional.real, log_q, 0.0)
