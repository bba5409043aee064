"""The gradient of the self-normalised inclusive-KL objective, accumulated over the steps of the sampler.

At the initial step and after every block update, samples and weights are constants:

    φ gets −Σ_l w̄_l ∇ log q_φ(z'_b | x, z_-b),        θ gets −Σ_l w̄_l ∇ log p_θ(x, z').

θ may instead learn after the last block of each sweep only (`model_learns="sweeps"`).

Where the weight of a block splits into elements, each element's log q, and each factor of log p that lies in it, uses its
own normalised weight.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from popgibbs._typing import ModelLearns, Values
from popgibbs.data import Data
from popgibbs.smc import (
    Event,
    Info,
    Sampler,
    Walk,
    effective_share,
    normalise,
    over_rows,
    run,
    score_initial,
    score_walk,
    weighted_sum,
)


class Gradient(NamedTuple):
    """Summed over blocks and sweeps, averaged over instances."""

    arrays: Any  # like the sampler's inexact arrays
    loss: Array  # of each block, summed over sweeps: −Σ w̄ log q; the initial step counts for the first block
    share: Array  # of each block, averaged over sweeps: the share of the particles that is effective in its gradient


def accumulate(
    sampler: Sampler,
    keys: Array,
    batch: Data,
    *,
    num_sweeps: int,
    num_particles: int,
    model_learns: ModelLearns = "blocks",
    shares: Float[Array, " instance"] | None = None,
) -> tuple[Gradient, Info]:
    """Run the sampler on a batch and accumulate the gradient as it goes; memory does not grow with the sweeps.

    `shares` are those of the instances in the average, by default equal.
    """
    if shares is None:
        shares = jnp.full(keys.shape, 1 / keys.shape[0])
    last_of_sweep = len(sampler.blocks) - 1 if num_sweeps else None
    arrays, static = eqx.partition(sampler, eqx.is_inexact_array)
    by_block = jnp.zeros(len(sampler.blocks))
    zero = Gradient(jax.tree.map(jnp.zeros_like, arrays), by_block, by_block)

    def observe(gradient: Gradient, sampler: Sampler, index: int | None, batch: Data, event: Event | Walk) -> Gradient:
        def surrogate(arrays: Any) -> tuple[Array, tuple[Array, Array]]:
            teaches_model = model_learns == "blocks" or index == last_of_sweep
            return _surrogate(eqx.combine(arrays, static), index, batch, event, teaches_model, shares)

        step, (loss, share) = jax.grad(surrogate, has_aux=True)(eqx.filter(sampler, eqx.is_inexact_array))
        return Gradient(
            jax.tree.map(jnp.add, gradient.arrays, step),
            gradient.loss.at[0 if index is None else index].add(loss),
            gradient.share + _its_part(share, index, num_sweeps, len(sampler.blocks)),
        )

    _, info, gradient = run(
        sampler, keys, batch, num_sweeps=num_sweeps, num_particles=num_particles, observe=observe, carry=zero
    )
    return gradient, info


def _its_part(share: Array, index: int | None, num_sweeps: int, num_blocks: int) -> Array:
    """What a step adds to the mean over sweeps; the initial step stands for all blocks where there are no sweeps."""
    if index is None:
        return jnp.full(num_blocks, share if num_sweeps == 0 else 0.0)
    return jnp.zeros(num_blocks).at[index].set(share / num_sweeps)


def _surrogate(
    sampler: Sampler, index: int | None, batch: Data, event: Event | Walk, teaches_model: bool, shares: Array
) -> tuple[Array, tuple[Array, Array]]:
    """A function of the sampler's arrays whose gradient is that of the step: −Σ w̄ (log q + log p), instances averaged."""
    event = stop_gradient(event)  # samples and weights are constants: nothing flows between blocks
    score = _initial_terms if index is None else _walk_terms if isinstance(event, Walk) else _block_terms
    log_q, log_p, effective = over_rows(score, None, None, 0, 0)(sampler, index, batch, event)
    loss = -weighted_sum(shares, log_q)
    return loss - weighted_sum(shares, log_p) if teaches_model else loss, (loss, weighted_sum(shares, effective))


def _initial_terms(sampler: Sampler, index: None, data: Data, event: Event) -> tuple[Array, Array, Array]:
    del index
    weights = normalise(jnp.sum(event.log_v, axis=-1))

    def terms(key: Array, latents: Values, weight: Array) -> tuple[Array, Array]:
        log_q = weighted_sum(weight, score_initial(key, sampler, data, latents))
        return log_q, _weighted_log_p(sampler, data, latents, weight, {})

    log_q, log_p = jax.vmap(terms)(event.keys, event.latents, weights)
    return jnp.sum(log_q), jnp.sum(log_p), effective_share(weights)


def _block_terms(sampler: Sampler, index: int, data: Data, event: Event) -> tuple[Array, Array, Array]:
    weights = normalise(event.log_weights + jnp.sum(event.log_v, axis=-1))
    weights_by_element = normalise(event.log_weights[:, None] + event.log_v)
    kernel, partition = sampler.blocks[index].kernel, sampler.partitions[index]
    learned = bool(jax.tree.leaves(eqx.filter(kernel, eqx.is_inexact_array)))

    def terms(key: Array, latents: Values, proposed: Values, weight: Array, by_element: Array) -> tuple[Array, Array]:
        latents = {**latents, **proposed}
        conditional = sampler.conditional(index, data, latents)
        log_q = weighted_sum(by_element, kernel.score(key, conditional, proposed)) if learned else jnp.zeros(())
        sizes = conditional.target.plate_sizes
        own = {name: partition.spread(by_element, name, sizes, latents) for name in conditional.factors}
        return log_q, _weighted_log_p(sampler, data, latents, weight, own)

    log_q, log_p = jax.vmap(terms)(event.keys, event.latents, event.proposed, weights, weights_by_element)
    real = sampler.conditional(index, data, jax.tree.map(lambda leaf: leaf[0], event.latents)).real
    share = jnp.sum(jnp.where(real, effective_share(weights_by_element), 0.0)) / jnp.sum(real)
    return jnp.sum(log_q), jnp.sum(log_p), share


def _walk_terms(sampler: Sampler, index: int, data: Data, event: Walk) -> tuple[Array, Array, Array]:
    """Of a sequence, log q has the weights of each step; log p those after the last step, when all states are new."""
    sequence, kernel = sampler.sequence(index, data), sampler.blocks[index].kernel
    weights = jax.vmap(normalise)(event.seen.log_weights + event.seen.log_v)
    real = sequence.real[:, None]
    if jax.tree.leaves(eqx.filter(kernel, eqx.is_inexact_array)):
        log_q = weighted_sum(jnp.where(real, weights, 0.0), score_walk(sequence, kernel, event))
    else:
        log_q = jnp.zeros(())

    def of_particle(latents: Values, weight: Array) -> Array:
        return _weighted_log_p(sampler, data, latents, weight, {})

    log_p = jax.vmap(of_particle)(event.latents, normalise(event.log_weights))
    share = jnp.sum(jnp.where(sequence.real, jax.vmap(effective_share)(weights), 0.0)) / jnp.sum(real)
    return log_q, jnp.sum(log_p), share


def _weighted_log_p(sampler: Sampler, data: Data, latents: Values, weight: Array, own: Values) -> Array:
    """w̄ log p(x, z) of one particle; the factors in `own` have weights of their own, by element."""
    if not jax.tree.leaves(eqx.filter(sampler.model, eqx.is_inexact_array)):
        return jnp.zeros(())
    log_probs = sampler.target(data).log_probs(latents)
    weighted = [weighted_sum(own.get(name, weight), log_prob) for name, log_prob in log_probs.items()]
    return sum(weighted, start=jnp.zeros(()))
