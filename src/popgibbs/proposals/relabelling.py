"""First draws whose components are shuffled, so that they reach every labelling.

A first draw from seeds s (or from a network with one output per component) puts each component in one place, although
the model does not distinguish components: it reaches one of M! labellings. After shuffling, a draw has the density

    q̄(z | s) = 1/M! Σ_π q(πz | s),        Σ_π q(πz | s) = Σ_π Π_m q_m(z_π(m) | s),

where the sum is the permanent of the matrix of each component's density at the values of every component.
"""

from dataclasses import dataclass, replace
from itertools import combinations
from math import lgamma
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jax.random import fold_in
from jaxtyping import Array, Float, Int

from popgibbs._random import unrolled
from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import BlockConditional, Partition, by_name
from popgibbs.proposals.base import BoundKernel, Kernel

_SHUFFLE = 0x5FF1E  # folded into a draw's key for the shuffle; large, because proposals fold in small numbers
_EXACT_UP_TO = 10  # components: the sum over labellings takes M·2ᴹ⁻¹ steps
_NUM_PROBES = 4


class Shuffled(Kernel):
    """A kernel whose draws have their components, the elements of a plate, shuffled."""

    kernel: Kernel
    plate: str = eqx.field(static=True)

    @property
    def summary(self) -> str:
        return f"{self.kernel.summary}; first draw shuffled over {self.plate}"

    def bind(self, key: PRNGKey, conditional: Any) -> "BoundShuffle":
        conditional = self.by_component(conditional)
        order = jax.random.permutation(fold_in(unrolled(key), _SHUFFLE), conditional.target.plate_sizes[self.plate])
        return BoundShuffle(self.kernel.bind(key, conditional), conditional, self.plate, order)

    def by_component(self, conditional: BlockConditional) -> BlockConditional:
        return replace(conditional, partition=Partition(conditional.target.sites, (self.plate,)))


@dataclass(frozen=True)
class BoundShuffle(BoundKernel):
    """The components of a bound kernel in one random order."""

    bound: BoundKernel
    conditional: BlockConditional
    plate: str
    order: Int[Array, " component"]

    def draw(self) -> tuple[Values, Elements]:
        values, _ = self.bound.draw()
        return self._taken(values, self.order), self._log_density(values)

    def score(self, values: Values) -> Elements:
        return self._log_density(self._taken(values, jnp.argsort(self.order)))

    def covers(self, values: Values) -> dict[str, Array]:
        return self.bound.covers(values)

    def _taken(self, values: Values, order: Int[Array, " component"]) -> Values:
        """The values with their components in another order."""
        sites = by_name(self.conditional.target.sites)

        def take(name: str) -> Array:
            axis = sites[name].axis(self.plate)
            assert axis is not None
            return jnp.take(values[name], order, axis=axis - sites[name].event_dim)

        return {name: take(name) for name in values}

    def _log_density(self, values: Values) -> Elements:
        places = jnp.arange(self.order.shape[0])

        def rolled(shift: Array) -> Elements:
            return self.bound.score(self._taken(values, (places + shift) % places.size))

        by_shift = jax.vmap(rolled)(places)
        log_q = by_shift[(places - places[:, None]) % places.size, places[:, None]]
        return log_average_over_labellings(log_q)[None]


def log_average_over_labellings(log_q: Float[Array, "place component"]) -> Float[Array, ""]:
    """log q̄ from log q_m(z_k); beyond 10 components, an estimate that keeps weights unbiased.

    The estimate is q(z) / (M! r). Here r is the probability of the assignment in z if the places, one after another, each
    choose among the remaining values in proportion to q_m. Weights p M! r / q are proper: r is a density of the labelling
    given z, so it integrates to one in the extended target.
    """
    size = log_q.shape[0]
    # Log-densities are kept finite, because the logsumexp of only -inf has no gradient.
    log_q = jnp.maximum(log_q, -1e30)
    if size > _EXACT_UP_TO:
        # Places that fit few of the values choose first; otherwise a broad component would take a value that only a
        # narrow one can have drawn. The order may depend on the values, but not on which place holds which.
        chances = jax.nn.softmax(stop_gradient(log_q), axis=-1)
        order = jnp.argsort(-jnp.sum(chances * jnp.log(jnp.maximum(chances, 1e-30)), axis=-1))
        log_q = log_q[order][:, order]
        remaining = jnp.where(jnp.arange(size) >= jnp.arange(size)[:, None], log_q, -jnp.inf)
        return jnp.sum(jax.nn.logsumexp(remaining, axis=-1)) - lgamma(size + 1)
    # Dynamic programming over the sets of values that the first places take, each from the sets with one value fewer.
    sums, smaller = jnp.zeros(1), list[tuple[int, ...]]([()])
    for count in range(1, size + 1):
        sets = list(combinations(range(size), count))
        without = [[smaller.index(taken[:i] + taken[i + 1 :]) for i in range(count)] for taken in sets]
        sums = jax.nn.logsumexp(sums[np.array(without)] + log_q[count - 1, np.array(sets)], axis=-1)
        smaller = sets
    return sums[0] - lgamma(size + 1)
