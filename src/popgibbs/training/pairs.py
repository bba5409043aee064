"""The gradient from simulated pairs of an instance and its latents, exact draws from the joint of the model.

For a pair (z, x) ~ p(z, x), the latents are an exact draw from the posterior, so no sampler has to run:

    φ gets −∇ log q_φ(z | x) of the first draw, and −Σ_b ∇ log q_φ(z_b | x, z_-b) of the updates,

the gradient of the same inclusive KL divergences that `objective.py` estimates by weighted particles, without their bias.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from popgibbs._typing import PRNGKey
from popgibbs.data import Data
from popgibbs.model import Particle, simulate
from popgibbs.moves import MoveKeys
from popgibbs.smc import BuiltSampler, has_arrays, score_initial, weighted_sum
from popgibbs.training.objective import Gradient


class PairInfo(NamedTuple):
    """Numbers about the pairs of a batch, by instance."""

    acceptance: Array  # by block: how often its proposal would be accepted at the pair; NaN for blocks that do not learn
    log_joint: Array
    finite: Array  # by site


def accumulate_pairs(
    sampler: BuiltSampler, keys: Array, batch: Data, *, instance_weights: Float[Array, " instance"]
) -> tuple[Gradient, PairInfo]:
    """The gradient of a batch of pairs; `batch` gives their sizes and the arguments that no site observes."""
    arrays, static = eqx.partition(sampler, eqx.is_inexact_array)

    def surrogate(arrays: Any) -> tuple[Array, tuple[Array, PairInfo]]:
        trained = eqx.combine(arrays, static).with_constant_model
        losses, info = jax.vmap(lambda key, data: _of_pair(trained, key, data))(keys, batch)
        by_block = weighted_sum(instance_weights[:, None], losses, axis=0)
        return jnp.sum(by_block), (by_block, info)

    gradient, (loss, info) = jax.grad(surrogate, has_aux=True)(arrays)
    return Gradient(gradient, loss, jnp.ones_like(loss)), info


def _of_pair(sampler: BuiltSampler, key: PRNGKey, template: Data) -> tuple[Array, PairInfo]:
    """The loss of each block at one pair; that of the first draw counts for the first block."""
    key_pair, key_first, key_blocks = jax.random.split(key, 3)
    arrays, latents = simulate(sampler.model, template.values, key_pair)
    data = Data(arrays, template.mask)
    particle = Particle(latents, sampler.target(data).log_probs(latents))
    losses, acceptance = [], []
    for index, block in enumerate(sampler.blocks):
        keys = MoveKeys(*jax.random.split(jax.random.fold_in(key_blocks, index)))
        loss, accepted = block.lesson(keys, sampler.context(index, data), particle)
        losses.append(loss)
        acceptance.append(accepted)
    if sampler.bridge is None and has_arrays(replace(sampler.start, model=None)):
        losses[0] -= score_initial(key_first, sampler, data, latents)
    finite = jnp.stack([jnp.all(jnp.isfinite(particle.log_probs[site.name])) for site in sampler.sites])
    return jnp.stack(losses), PairInfo(jnp.stack(acceptance), particle.log_joint, finite.astype(float))
