"""The gradient of the self-normalised inclusive-KL objective, accumulated over the steps of the sampler.

At the initial step and after every block update, samples and weights are constants:

    φ gets −Σ_l w̄_l ∇ log q_φ(z'_b | x, z_-b),        θ gets −Σ_l w̄_l ∇ log p_θ(x, z').

With `update_model="every_sweep"`, θ gets a gradient only after the last block of each sweep. Each event of the sampler
computes its own terms (`smc/events.py`).
"""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from popgibbs._typing import UpdateModel
from popgibbs.data import Data
from popgibbs.smc import BuiltSampler, Event, Info, Terms, over_rows, run, weighted_sum


class Gradient(NamedTuple):
    """A gradient and its diagnostics, summed over blocks and sweeps and averaged over instances."""

    arrays: Any  # like the sampler's inexact arrays
    loss: Array  # of each block, summed over sweeps: −Σ w̄ log q; the initial step counts for the first block
    ess_fraction: Array  # of each block, averaged over sweeps: ESS/L of the weights in its gradient


def accumulate(
    sampler: BuiltSampler,
    keys: Array,
    batch: Data,
    *,
    num_sweeps: int,
    num_particles: int,
    update_model: UpdateModel = "every_block",
    instance_weights: Float[Array, " instance"] | None = None,
    beta: Float[Array, ""] | None = None,
) -> tuple[Gradient, Info]:
    """Run the sampler on a batch and accumulate the gradient; memory does not grow with the number of sweeps.

    `instance_weights` are the weights of the average over instances, by default equal. `beta` is the power of the
    likelihood.
    """
    if instance_weights is None:
        instance_weights = jnp.full(keys.shape, 1 / keys.shape[0])
    last_of_sweep = len(sampler.blocks) - 1 if num_sweeps else None
    arrays, static = eqx.partition(sampler, eqx.is_inexact_array)
    static = replace(static, beta=beta)  # not trained
    by_block = jnp.zeros(len(sampler.blocks))
    zero = Gradient(jax.tree.map(jnp.zeros_like, arrays), by_block, by_block)

    def observe(gradient: Gradient, sampler: BuiltSampler, batch: Data, event: Event) -> Gradient:
        teaches_model = update_model == "every_block" or event.block == last_of_sweep

        def surrogate(arrays: Any) -> tuple[Array, tuple[Array, Array]]:
            return _surrogate(eqx.combine(arrays, static), batch, event, teaches_model, instance_weights)

        current = replace(eqx.filter(sampler, eqx.is_inexact_array), beta=None)
        step, (loss, ess_fraction) = jax.grad(surrogate, has_aux=True)(current)
        return Gradient(
            jax.tree.map(jnp.add, gradient.arrays, step),
            gradient.loss.at[event.block or 0].add(loss),
            gradient.ess_fraction + _part_of_mean(ess_fraction, event.block, num_sweeps, len(sampler.blocks)),
        )

    _, info, gradient = run(
        eqx.combine(arrays, static),
        keys,
        batch,
        num_sweeps=num_sweeps,
        num_particles=num_particles,
        observe=observe,
        carry=zero,
    )
    return gradient, info


def _part_of_mean(number: Array, block: int | None, num_sweeps: int, num_blocks: int) -> Array:
    """An event's part of a mean over sweeps, by block; without sweeps, the initial step counts for every block."""
    if block is None:
        return jnp.full(num_blocks, number if num_sweeps == 0 else 0.0)
    return jnp.zeros(num_blocks).at[block].set(number / num_sweeps)


def _surrogate(
    sampler: BuiltSampler, batch: Data, event: Event, teaches_model: bool, instance_weights: Array
) -> tuple[Array, tuple[Array, Array]]:
    """−Σ w̄ (log q + log p), averaged over instances: a function of the sampler's arrays with the event's gradient."""
    event = stop_gradient(event)  # samples and weights are constants: nothing flows between blocks
    terms: Terms = over_rows(type(event).terms, 0, None, 0)(event, sampler, batch)
    loss = -weighted_sum(instance_weights, terms.log_q)
    total = loss - weighted_sum(instance_weights, terms.log_p) if teaches_model else loss
    return total, (loss, weighted_sum(instance_weights, terms.ess_fraction))
