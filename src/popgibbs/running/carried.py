"""A check of every run: the log-probabilities that particles carry are those of their latents.

A block's update computes only the factors that contain its sites, and where it accepts elements one by one, only those of
accepted elements change. Which factors and elements these are is decided when the sampler is built. If that missed a
dependence, particles carry stale numbers. Runs look for these after every update of a block whose elements were not
proved independent, and at the end.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from popgibbs._compiling import Program, jit_once
from popgibbs._random import unrolled
from popgibbs._typing import Values
from popgibbs.data import Data
from popgibbs.model import touched
from popgibbs.running.rounding import with_rounding_errors
from popgibbs.smc import BuiltSampler, Population, disagreement

NOISE_MARGIN = 10.0
NUM_NOISY = 8  # evaluations with random rounding errors


def carried_errors(sampler: BuiltSampler, data: Data, population: Population) -> Float[Array, " site"]:
    """For each site, the largest disagreement of carried with fresh log-probabilities over particles with weight."""
    carried = population.particles.log_probs
    fresh = jax.vmap(sampler.target(data).log_probs)(population.particles.latents)
    alive = population.log_weights > -jnp.inf

    def error(name: str) -> Array:
        found = disagreement(carried[name], fresh[name]).reshape(alive.shape[0], -1)
        return jnp.max(jnp.where(alive, jnp.max(found, axis=-1), 0.0))

    return jnp.stack([error(site.name) for site in sampler.sites])


def check_carried(
    sampler: BuiltSampler,
    indices: np.ndarray,
    batch: Data,
    population: Population,
    errors: Float[np.ndarray, "instance population site"],
) -> None:
    """Raise if carried log-probabilities are stale; `indices` are the places of the instances in the user's list."""
    for row, site in np.argwhere(errors.max(axis=1) > 1):
        name = sampler.sites[site].name
        data, found = jax.tree.map(lambda leaf: leaf[row], (batch, population))  # noqa: B023
        if errors[row, :, site].max() > NOISE_MARGIN * _rounding_noise(sampler, data, found, name):
            raise ValueError(_explain(sampler, name, int(indices[row])))


def _explain(sampler: BuiltSampler, name: str, instance: int) -> str:
    for block, partition in zip(sampler.blocks, sampler.partitions, strict=True):
        if not partition.whole and name in touched(sampler.sites, block.updated):
            return (
                f"block '{block.name}': the elements of the plate {list(partition.plates)} are not independent, which "
                f"the checks at construction did not detect: in instance {instance} one element changed the "
                f"log-probability of '{name}' at another; write '{name}' outside of that plate"
            )
    return (
        f"the log-probability of '{name}' in instance {instance} depends on more than the model's trace shows; compute "
        "it from the model's sites and arguments by JAX operations only"
    )


@partial(Program, compile=jit_once)
def _rounding_noise(sampler: BuiltSampler, data: Data, population: Population, name: str) -> Array:
    """How much a site's log-probability changes with rounding errors, which is much if large terms cancel.

    Compilers order and fuse operations differently, and so round them differently. Here every result on the way to the
    log-probability is changed by a random rounding error, a few times.
    """
    target = sampler.target(data)

    def of_particle(latents: Values) -> Array:
        def log_prob(latents: Values) -> Array:
            return target.log_probs(latents, [name])[name]

        keys = jax.random.split(unrolled(jax.random.key(22)), NUM_NOISY)
        noisy = jax.lax.map(partial(with_rounding_errors(log_prob, latents), latents), keys)
        return jnp.max(jnp.where(jnp.isfinite(noisy), disagreement(noisy, log_prob(latents)), 0.0))

    return jnp.max(jax.vmap(jax.vmap(of_particle))(population.particles.latents))
