"""An annealed bridge from the prior to the posterior, in place of the first draw.

    z ~ p(z),  w = 1
    for t = 1, ..., T:
        z'_b ~ q_t(z_b | x, z_-b)
        w = w p_t(x, z'_b, z_-b) q_{t−1}(z_b | x, z_-b) / (p_{t−1}(x, z_b, z_-b) q_t(z'_b | x, z_-b))
        z_b = z'_b
        z, w = sweep(z, w) for the target p_t(x, z) = p(z) p(x | z)^β_t, unless t = T

with 0 = β_0 < ... < β_T = 1. Each sweep leaves its tempered target as it is, so the mean weight stays an unbiased estimate
of the evidence. The temperatures depend on nothing that was drawn. Block b is the one with the most elements. Where q_t is
its exact conditional, the weight is the ratio of the targets with z_b summed out: data points bring no noise to it.
Without such a block the weight is p(x | z)^(β_t − β_{t−1}), as in annealed importance sampling.
"""

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from popgibbs._arguments import whole_number
from popgibbs._random import standard
from popgibbs._typing import PRNGKey, Values
from popgibbs.data import Data
from popgibbs.model import Particle, evaluate, latent_names
from popgibbs.smc.events import Event, Terms, weighted_log_p
from popgibbs.smc.population import Population
from popgibbs.smc.weights import ess_fraction, normalise

_POWER = 4.0  # of the temperatures: small steps where the prior meets the likelihood


@dataclass(frozen=True)
class Bridge:
    """A first draw that begins at the prior and anneals the likelihood, one sweep of the sampler's blocks per temperature.

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

    num_temperatures: int = 30

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


def anneal(key: PRNGKey, sampler: Any, data: Data, population: Population, before: Array, after: Array) -> Population:
    """Move a population from the target at one power of the likelihood to the target at another."""
    old, new = tempered(sampler, before), tempered(sampler, after)
    target = new.target(data)
    chosen = absorbing(sampler)

    def one(key: PRNGKey, particle: Particle) -> tuple[Particle, Array]:
        latents = particle.latents
        log_v = -old.target(data).log_joint(latents)
        if chosen is not None:
            block = sampler.blocks[chosen]

            def bound(at: Any) -> Any:
                return block.kernel.bind(standard(key), block.conditional(at.context(chosen, data), latents))

            values, log_q = bound(new).draw()
            log_v += jnp.sum(bound(old).score({name: latents[name] for name in block.sites})) - jnp.sum(log_q)
            latents = {**latents, **values}
        moved = Particle(latents, target.log_probs(latents))
        return moved, log_v + moved.log_joint

    keys = jax.random.split(key, population.log_weights.shape[0])
    return population.weigh(*jax.vmap(one)(keys, population.particles))


def absorbing(sampler: Any) -> int | None:
    """The block with exact draws, of several elements, that is redrawn whenever the temperature changes."""
    found = [index for index, block in enumerate(sampler.blocks) if block.kernel is not None and block.kernel.is_exact]
    return found[-1] if found else None


def tempered(sampler: Any, beta: Array) -> Any:
    """The sampler of the target p(z) p(x | z)^β."""
    return replace(sampler, beta=beta if sampler.beta is None else beta * sampler.beta)
