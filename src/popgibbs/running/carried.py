"""The last check of a run: the log-probabilities that particles carry are those of their latents.

A block's update computes only the factors that contain its sites, and where its weight splits, only each element's own.
Both are found when the sampler is built. If something was missed there, a particle carries a stale number.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from popgibbs._typing import Values
from popgibbs.data import Data
from popgibbs.model import touched
from popgibbs.smc import Population, Sampler

TOLERANCE = 1e-2  # relative to the size of a log-probability where that is above one
NOISE_MARGIN = 100.0
STEPS = np.arange(-4, 5) * np.finfo(np.float32).eps  # relative changes of latents, as rounding makes them


def carried_errors(sampler: Sampler, data: Data, population: Population) -> Float[Array, " site"]:
    """How far the carried log-probabilities of each site are from those of the latents.

    The largest relative error over the particles that have weight. It is zero but for rounding.
    """
    carried = population.particles.log_probs
    fresh = jax.vmap(sampler.target(data).log_probs)(population.particles.latents)
    alive = population.log_weights > -jnp.inf

    def error(name: str) -> Array:
        relative = _relative_error(carried[name], fresh[name])
        return jnp.max(jnp.where(alive, jnp.max(relative.reshape(alive.shape[0], -1), axis=-1), 0.0))

    return jnp.stack([error(site.name) for site in sampler.sites])


def _relative_error(a: Array, b: Array) -> Array:
    same = (a == b) | (jnp.isnan(a) & jnp.isnan(b))
    error = jnp.abs(a - b) / (1 + jnp.minimum(jnp.abs(a), jnp.abs(b)))
    return jnp.where(same, 0.0, jnp.where(jnp.isnan(error), jnp.inf, error))


def check_carried(
    sampler: Sampler,
    indices: np.ndarray,
    batch: Data,
    population: Population,
    errors: Float[np.ndarray, "instance population site"],
) -> None:
    """Refuse the results of a batch of instances, whose places in the user's list are `indices`, if they do not hold."""
    for row, site in np.argwhere(errors.max(axis=1) > TOLERANCE):
        name = sampler.sites[site].name
        data, found = jax.tree.map(lambda leaf: leaf[row], (batch, population))  # noqa: B023
        if errors[row, :, site].max() > NOISE_MARGIN * _rounding_noise(sampler, data, found, name):
            raise ValueError(_explain(sampler, name, int(indices[row])))


def _explain(sampler: Sampler, name: str, instance: int) -> str:
    for block, partition in zip(sampler.blocks, sampler.partitions, strict=True):
        if not partition.whole and name in touched(sampler.sites, block.sites):
            return (
                f"block '{block.label}': the elements of the plate {list(partition.plates)} are not independent, which "
                f"the checks at build did not see: at instance {instance} one element changed the log-probability of "
                f"'{name}' at another; write '{name}' outside of that plate"
            )
    return (
        f"the log-probability of '{name}' at instance {instance} depends on more than the model's trace shows; compute "
        "it from the model's sites and arguments by JAX operations alone"
    )


@eqx.filter_jit
def _rounding_noise(sampler: Sampler, data: Data, population: Population, name: str) -> Array:
    """How much a site's log-probability changes when latents change by rounding: where large terms cancel, much."""
    target = sampler.target(data)

    def of_particle(latents: Values) -> Array:
        def at(step: Array) -> Array:
            scaled = {n: v * (1 + step) if jnp.issubdtype(v.dtype, jnp.floating) else v for n, v in latents.items()}
            return target.log_probs(scaled, [name])[name]

        found = jax.lax.map(at, jnp.asarray(STEPS))
        return jnp.max(jnp.where(jnp.isfinite(found), _relative_error(found, found[len(STEPS) // 2]), 0.0))

    return jnp.max(jax.vmap(jax.vmap(of_particle))(population.particles.latents))
