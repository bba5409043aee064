"""An annealed bridge from the prior to the posterior, in place of the first draw.

    z ~ p(z),  w = 1
    for t = 1, ..., T:
        w = w p(x | z)^(β_t − β_{t−1})
        z, w = sweep(z, w) for the target p(z) p(x | z)^β_t, unless t = T

with 0 = β_0 < ... < β_T = 1. Each sweep leaves its tempered target as it is, so the mean weight stays an unbiased
estimate of the evidence (annealed importance sampling, with resampling). The temperatures depend on nothing that was
drawn.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from popgibbs._arguments import whole_number
from popgibbs._typing import PRNGKey, Values
from popgibbs.data import Data
from popgibbs.model import Particle, evaluate, latent_names
from popgibbs.moves import log_ratio
from popgibbs.smc.events import Event, Terms, weighted_log_p
from popgibbs.smc.population import Population
from popgibbs.smc.weights import ess_fraction, normalise

_POWER = 4.0  # of the temperatures: small steps where the prior meets the likelihood


@dataclass(frozen=True)
class Bridge:
    """A first draw that begins at the prior and anneals the likelihood, with one sweep of the blocks per temperature.

        z ~ p(z),    w = Π_t p(x | z)^(β_t − β_{t−1}),    β_t = (t/T)⁴

    It needs no trained first draw, finds modes that a first draw may miss, and its evidence is unbiased and improves with
    the number of temperatures. Pass it as `APG(initial=...)`; samplers that are built from the model use it by default
    until they are trained.

    Args:
        num_temperatures: T, the number of steps from the prior to the posterior; each costs one sweep.

    Raises:
        ValueError: `num_temperatures` is not a whole number above 0.

    Examples:
        >>> annealed = sampler.with_blocks(sampler.blocks, initial=pg.Bridge(10))
        >>> annealed.sample(key, instances, num_sweeps=1).num_sweeps
        1
    """

    num_temperatures: int = 20

    def __post_init__(self) -> None:
        whole_number("num_temperatures", self.num_temperatures, 1)

    @property
    def summary(self) -> str:
        """How it draws the first particles, in a few words, for `APG.describe`."""
        return f"from the prior, annealed over {self.num_temperatures} temperatures by the blocks' sweeps"

    def beta(self, step: Array) -> Float[Array, ""]:
        """The power of the likelihood after a step."""
        return (step / self.num_temperatures) ** _POWER


class BridgeEvent(Event):
    """The population at the end of the bridge, which teaches the model but no proposal."""

    latents: Values
    log_weights: Array

    def terms(self, sampler: Any, data: Data) -> Terms:
        weights, target = normalise(self.log_weights), sampler.target(data)
        log_p = jax.vmap(lambda latents, weight: weighted_log_p(target, latents, weight))(self.latents, weights)
        return Terms(jnp.zeros(()), jnp.sum(log_p), ess_fraction(weights))


def from_prior(key: PRNGKey, sampler: Any, data: Data, num_particles: int) -> Population:
    """A population drawn from the prior, whose weights are equal."""
    target = sampler.target(data)
    names = latent_names(sampler.sites)

    def one(key: PRNGKey) -> Particle:
        values, log_probs = evaluate(target.program, key, {})
        return Particle({name: values[name] for name in names}, log_probs)

    particles = jax.vmap(one)(jax.random.split(key, num_particles))
    return Population(
        particles=particles,
        log_weights=jnp.zeros(num_particles),
        log_evidence=jnp.zeros(()),
        ancestors=jnp.arange(num_particles),
        degenerate=jnp.zeros((), bool),
    )


def anneal(sampler: Any, data: Data, population: Population, before: Array, after: Array) -> Population:
    """Multiply the weights by p(x | z)^(after − before); the particles carry the factors of the new target."""
    latents = population.particles.latents
    old, new = (jax.vmap(tempered(sampler, beta).target(data).log_probs)(latents) for beta in (before, after))
    observed = [site.name for site in sampler.sites if site.observed]

    def gain(name: str) -> Array:
        both = jnp.stack([new[name], old[name]]).reshape(2, population.log_weights.shape[0], -1)
        return jnp.sum(log_ratio(both[0], both[1]), axis=-1)

    log_v = sum((gain(name) for name in observed), start=jnp.zeros(population.log_weights.shape))
    return population.weigh(Particle(latents, new), log_v)


def tempered(sampler: Any, beta: Array) -> Any:
    """The sampler of the target p(z) p(x | z)^β."""
    return replace(sampler, beta=beta if sampler.beta is None else beta * sampler.beta)
