"""Events: the record of one step of one population, and its terms of the gradient.

Samples and weights are constants to the gradient:

    φ gets −Σ_l w̄_l ∇ log q_φ(z'_b | x, z_-b),        θ gets −Σ_l w̄_l ∇ log p_θ(x, z').

Where the weight of a block splits into elements, each element's log q, and its factors of log p, use the normalised
weight of that element.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from popgibbs._typing import Values
from popgibbs.data import Data
from popgibbs.model import Target
from popgibbs.smc.weights import ess_fraction, normalise, weighted_sum

if TYPE_CHECKING:
    from popgibbs.smc.built import BuiltSampler


class Terms(NamedTuple):
    """The gradient terms of one event."""

    log_q: Float[Array, ""]  # Σ w̄ log q, a function of φ
    log_p: Float[Array, ""]  # Σ w̄ log p, a function of θ
    ess_fraction: Float[Array, ""]  # ESS/L of the weights in this gradient


class Event(eqx.Module):
    """One step of one population: every array has the particles as its leading axis."""

    block: int | None = eqx.field(static=True, kw_only=True)  # the updated block; None: the initial step

    @abstractmethod
    def terms(self, sampler: "BuiltSampler", data: Data) -> Terms:
        """The event's terms of the gradient, as a function of the sampler's arrays."""


class BlockEvent(Event):
    """An update of a block of sites."""

    keys: Array  # under which the proposals drew and score
    latents: Values  # before the update; the values of the block are overridden by `proposed`
    proposed: Values
    log_weights: Array  # incoming
    log_v: Array  # incremental, by element of the block

    def terms(self, sampler: "BuiltSampler", data: Data) -> Terms:
        assert self.block is not None
        block, context = sampler.blocks[self.block], sampler.context(self.block, data)
        target, partition = context.target, context.plan.partition
        weights = normalise(self.log_weights + jnp.sum(self.log_v, axis=-1))
        weights_by_element = normalise(self.log_weights[:, None] + self.log_v)
        learned, proposing = has_arrays(block.kernel), sampler.with_constant_model.context(self.block, data)

        def of_particle(key: Array, latents: Values, proposed: Values, weight: Array, by_element: Array) -> Any:
            latents = {**latents, **proposed}
            conditional = block.conditional(context, latents)
            log_q = jnp.zeros(())
            if learned:
                bound = block.bound(key, block.conditional(proposing, latents), latents)
                log_q = weighted_sum(by_element, bound.score(proposed))
            sizes = target.plate_sizes
            own = {name: partition.spread(by_element, name, sizes, latents) for name in conditional.factors}
            return log_q, weighted_log_p(target, latents, weight, own)

        log_q, log_p = jax.vmap(of_particle)(self.keys, self.latents, self.proposed, weights, weights_by_element)
        real = block.conditional(context, jax.tree.map(lambda leaf: leaf[0], self.latents)).real
        fraction = jnp.sum(jnp.where(real, ess_fraction(weights_by_element), 0.0)) / jnp.sum(real)
        return Terms(jnp.sum(log_q), jnp.sum(log_p), fraction)


def has_arrays(tree: Any) -> bool:
    """Whether a tree has arrays to train."""
    return bool(jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array)))


def weighted_log_p(target: Target, latents: Values, weight: Array, own: Values | None = None) -> Float[Array, ""]:
    """w̄ log p(x, z) of one particle; the factors in `own` have their own weights, by element."""
    if not has_arrays(target.model):
        return jnp.zeros(())
    own = own or {}
    log_probs = target.log_probs(latents)
    weighted = [weighted_sum(own.get(name, weight), log_prob) for name, log_prob in log_probs.items()]
    return sum(weighted, start=jnp.zeros(()))
