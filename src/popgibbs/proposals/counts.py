"""Integers without bound as a proposal: the model's own conditional on a grid of integers around its mode.

The grid has stride one, and then the conditional's own probabilities, where the conditional is narrow. Where it is wide,
the density is linear between the nodes of the grid.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpyro.distributions.transforms import IdentityTransform

from popgibbs._random import unrolled
from popgibbs._reuse import computed_once
from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import Conditional, centre_and_scale, raw_sites
from popgibbs.proposals.base import BoundKernel, Kernel

_INSIDE = 32  # nodes at equal distances on each side of the mode
_OUTSIDE = np.cumsum([2, 3, 5, 8, 12, 20, 32, 51])  # then nodes at growing distances, in strides
_SIDE = np.concatenate([np.arange(1, _INSIDE + 1), _INSIDE + _OUTSIDE])
_DROP = 8.0  # of the log-density, within which equal distances are kept: four standard deviations of a Gaussian
_WIDE = 0.02  # the share of draws that reach every integer
_LONGEST = 2**24  # steps and reaches, beyond which float32 does not tell integers apart
_NUM_DOUBLINGS = 28  # of the distance to the mode, in the wide share
_FARTHEST = 2**29  # an integer, where the support has no bound


class Counts(Kernel):
    """The conditional p(z_b | x, z_-b) of counts without bound on a grid of integers around its mode, without training.

        q(n) = 0.98 f(n) / Σ f + 0.02 h(n)

    Every element of the block has its own grid of 81 nodes. The mode is found from the centre of the prior by steps that
    double and halve, and the distances of the nodes by how fast the density falls. f is the conditional at the nodes and
    linear between them; a conditional that is up to 64 integers wide has a node at each of them, so that f is exact. h
    falls as 1/d with the distance d from the mode and covers every integer of the support. Use `Metropolis()` with it.
    The first draw uses only the factors whose sites exist at that point.

    Examples:
        >>> def survey(x):
        ...     animals = numpyro.sample("animals", dist.Poisson(30.0))
        ...     with numpyro.plate("visits", x.shape[0]):
        ...         numpyro.sample("x", dist.Binomial(animals, 0.4), obs=x)
        >>> block = pg.Block("animals", proposal=pg.Counts(), move=pg.Metropolis())
        >>> counted = {"x": np.array([9, 14, 11])}
        >>> pg.APG(survey, data={"x": "visits"}, blocks=[block], example=counted).blocks[0].proposal
        Counts()
    """

    from_model: ClassVar[bool] = True
    needs_parents: ClassVar[bool] = True
    needs_count: ClassVar[bool] = True
    takes_any_key: ClassVar[bool] = True

    @property
    def summary(self) -> str:
        return "integers around the mode"

    def bind(self, key: PRNGKey, conditional: Conditional) -> "BoundCounts":
        return BoundCounts(key, conditional)


class Cells(NamedTuple):
    """Runs of consecutive integers, in which a density is linear."""

    begin: Int[Array, "cell ..."]
    size: Int[Array, "cell ..."]
    left: Float[Array, "cell ..."]  # the density at `begin`
    right: Float[Array, "cell ..."]  # the density at `begin + size`, which is outside

    @property
    def mass(self) -> Float[Array, "cell ..."]:
        """Σ_j left + (right − left) j / size over j = 0, ..., size − 1."""
        return 0.5 * (self.left * (self.size + 1) + self.right * (self.size - 1)) * (self.size > 0)

    def times(self, factor: Float[Array, "..."]) -> "Cells":
        return self._replace(left=self.left * factor, right=self.right * factor)

    def density(self, number: Int[Array, "..."]) -> Float[Array, "..."]:
        """The density of an integer, summed over the cells that contain it."""
        place = number - self.begin
        inside = (place >= 0) & (place < self.size)
        slope = (self.right - self.left) / jnp.maximum(self.size, 1)
        return jnp.sum(jnp.where(inside, self.left + slope * place, 0.0), axis=0)

    def draw(self, key: PRNGKey) -> Int[Array, "..."]:
        """A cell by its mass, and an integer inside it."""
        key_choices, key_numbers = jax.random.split(unrolled(key))
        shape = self.begin.shape[1:]
        u_cell, u_slope = jax.random.uniform(key_choices, (2, *shape))
        total = jnp.cumsum(self.mass, axis=0)
        chosen = jnp.argmax(total > u_cell * total[-1], axis=0)
        begin, size, left, right = (jnp.take_along_axis(part, chosen[None], axis=0)[0] for part in self)
        # A linear density is a mixture of one that falls to 0 at `begin + size` and one that rises from 0 at `begin`.
        # Two different numbers of 0, ..., m − 1 have the distance d in proportion to m − d.
        falling, rising = left * (size + 1), right * (size - 1)
        falls = u_slope * (falling + rising) < falling
        m = jnp.maximum(jnp.where(falls, size + 1, size), 2)
        bits = jax.random.bits(key_numbers, (2, *shape), jnp.uint32)
        first, ahead = ((bits[i] % (m - i).astype(jnp.uint32)).astype(int) for i in range(2))
        distance = jnp.abs(first - (first + 1 + ahead) % m)
        return begin + jnp.where(falls, distance - 1, m - distance)


@dataclass(frozen=True)
class BoundCounts(BoundKernel):
    """Cells around the mode of every element's conditional; all arrays have the shape of the site's value."""

    key: PRNGKey
    conditional: Conditional

    def draw(self) -> tuple[Values, Elements]:
        values = self._values(self._cells.draw(self.key))
        return values, self.score(values)

    def score(self, values: Values) -> Elements:
        density = self._cells.density(values[self._name].astype(int))
        return self.conditional.reduce_proposed({self._name: jnp.log(density)})

    @property
    def _name(self) -> str:
        (name,) = self.conditional.names
        return name

    @computed_once
    def _prior(self) -> dict[str, Any]:
        """NumPyro's record of the site, given its parents."""
        return raw_sites(self.conditional.modelled, jax.random.key(0), self.conditional.given)[self._name]

    @computed_once
    def _bounds(self) -> tuple[Array, Array]:
        """The least and the greatest integer of the support."""
        constraint = self._prior["fn"].support
        while hasattr(constraint, "base_constraint"):
            constraint = constraint.base_constraint
        low, high = getattr(constraint, "lower_bound", -_FARTHEST), getattr(constraint, "upper_bound", _FARTHEST)
        return self._integers(low), self._integers(high)

    @computed_once
    def _start(self) -> Array:
        centre, _ = centre_and_scale(self._prior["fn"], IdentityTransform())
        return jnp.clip(self._integers(centre), *self._bounds)

    def _integers(self, numbers: Any) -> Array:
        rounded = jnp.round(jnp.nan_to_num(jnp.asarray(numbers, float)))
        return jnp.broadcast_to(jnp.clip(rounded, -_FARTHEST, _FARTHEST).astype(int), self._prior["fn"].shape())

    def _values(self, numbers: Int[Array, "..."]) -> Values:
        return {self._name: numbers.astype(self._prior["value"].dtype)}

    def _log_density(self, numbers: Int[Array, "..."]) -> Float[Array, "..."]:
        """The block's factors of each element, at every number of the element; −inf where they are undefined."""
        conditional, values = self.conditional, self._values(numbers)
        by_element = conditional.reduce(conditional.log_probs(values))
        log_p = jnp.broadcast_to(conditional.lay(by_element, self._name), numbers.shape)
        # Padded elements have no factors; a narrow density ends the search for them at once.
        narrow = -(jnp.abs(numbers - self._start).astype(float) ** 2)
        log_p = jnp.where(conditional.is_real(self._name, numbers), log_p, narrow)
        return jnp.where(jnp.isnan(log_p), -jnp.inf, log_p)

    @computed_once
    def _mode(self) -> "_Search":
        """The integer of the highest density, for densities with one mode.

        Steps double until neither side is better, and then halve; the mode stays less than a step away. The density at
        the start is not computed, because halving steps come back to it.
        """

        def move(state: "_Search") -> "_Search":
            either = jnp.clip(jnp.stack([state.at - state.step, state.at + state.step]), *self._bounds)
            found = jax.vmap(self._log_density)(either)
            best = jnp.max(found, axis=0)
            better = best > state.log_p
            at = jnp.where(better, jnp.where(found[0] == best, either[0], either[1]), state.at)
            grows = state.grows & (better | (state.log_p == -jnp.inf)) & (state.step < _LONGEST)
            step = jnp.where(grows, 2 * state.step, state.step // 2)
            return _Search(at, jnp.maximum(best, state.log_p), step, grows)

        _, scale = centre_and_scale(self._prior["fn"], IdentityTransform())
        power = jnp.clip(jnp.round(jnp.log2(jnp.nan_to_num(scale, posinf=1.0))), 0, 20).astype(int)
        step = jnp.broadcast_to(2**power, self._start.shape)
        begin = _Search(self._start, jnp.full(step.shape, -jnp.inf), step, jnp.ones(step.shape, bool))
        return jax.lax.while_loop(lambda state: jnp.any(state.step > 0), move, begin)

    @computed_once
    def _nodes(self) -> Int[Array, "node ..."]:
        """The mode and the nodes on either side, with a stride of their own for each side."""
        mode, (low, high) = self._mode.at, self._bounds
        least = self._mode.log_p - _DROP

        def widen(state: tuple[Array, Array]) -> tuple[Array, Array]:
            reach, _ = state
            ends = jnp.stack([mode - reach[0], mode + reach[1]])
            wide = jax.vmap(self._log_density)(jnp.clip(ends, low, high)) > least
            wide &= (ends > low) & (ends < high) & (reach < _LONGEST)
            return jnp.where(wide, 2 * reach, reach), wide

        reach = jnp.ones((2, *mode.shape), int)
        reach, _ = jax.lax.while_loop(lambda state: jnp.any(state[1]), widen, (reach, reach > 0))
        stride = jnp.maximum(reach // _INSIDE, 1)
        side = jnp.asarray(_SIDE).reshape(-1, *[1] * mode.ndim)
        nodes = jnp.concatenate([mode - side[::-1] * stride[0], mode[None], mode + side * stride[1]])
        return jnp.clip(nodes, low, high)

    @computed_once
    def _cells(self) -> Cells:
        near, far = self._near, self._far
        mass = jnp.sum(near.mass, axis=0)
        found = mass > 0  # else no possible integer was found
        near = near.times(jnp.where(found, (1.0 - _WIDE) / jnp.where(found, mass, 1.0), 0.0))
        far = far.times(jnp.where(found, _WIDE, 1.0))
        return Cells(*(jnp.concatenate(parts) for parts in zip(near, far, strict=True)))

    @property
    def _near(self) -> Cells:
        """The conditional, linear between nodes, up to its constant; the last node has a cell of its own."""
        nodes = self._nodes
        log_p = jax.vmap(self._log_density)(nodes)
        top = jnp.max(log_p, axis=0)
        p = jnp.exp(log_p - jnp.where(top > -jnp.inf, top, 0.0))
        return Cells(nodes, jnp.diff(nodes, axis=0, append=nodes[-1:] + 1), p, jnp.concatenate([p[1:], p[-1:]]))

    @property
    def _far(self) -> Cells:
        """Cells of equal mass, whose sizes double with the distance from the mode, cut at the bounds of the support."""
        mode, (low, high) = self._mode.at, self._bounds
        power = 2 ** jnp.arange(_NUM_DOUBLINGS).reshape(-1, *[1] * mode.ndim)
        begin = jnp.concatenate([mode - 2 * power + 1, mode + power - 1])
        end = jnp.concatenate([mode - power + 1, mode + 2 * power - 1])
        begin, end = jnp.maximum(begin, low), jnp.minimum(end, high + 1)
        size = jnp.maximum(end - begin, 0)
        height = jnp.where(size > 0, 1.0 / jnp.maximum(size, 1), 0.0) / jnp.maximum(jnp.sum(size > 0, axis=0), 1)
        return Cells(begin, size, height, height)


class _Search(NamedTuple):
    """Where a search for the mode is."""

    at: Int[Array, "..."]
    log_p: Float[Array, "..."]
    step: Int[Array, "..."]
    grows: Bool[Array, "..."]
