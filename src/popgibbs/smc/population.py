"""A population of weighted particles of one instance, and its resampling."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from popgibbs._typing import PRNGKey, Resampler
from popgibbs.smc.weights import degenerate, ess, log_mean_exp, normalise, proper, weighted_sum


class Report(NamedTuple):
    """Numbers about the update of a block of a population."""

    ess: Array
    acceptance: Array
    impossible: Array  # whether a particle that had weight lost all of it
    stale: Array  # by site: disagreement of carried and fresh log-probabilities, where it is not zero by construction


class Population(eqx.Module):
    """Weighted particles of one instance; every array of `particles` has the particles as its leading axis."""

    particles: Any  # a Particle, or the part of one that a step of a sequence needs
    log_weights: Array  # since the last resampling
    log_evidence: Array  # product of mean weights up to the last resampling
    ancestors: Array  # each particle's index in the initial population
    degenerate: Array  # whether weights ever failed

    @property
    def total_log_evidence(self) -> Float[Array, ""]:
        """log Ẑ: the product over resamplings of the mean weight, times the current mean weight."""
        return self.log_evidence + log_mean_exp(self.log_weights)

    @property
    def mean_log_joint(self) -> Float[Array, ""]:
        """Σ_l w̄_l log p(x, z_l), with equal weights if no particle has weight."""
        weights = normalise(self.log_weights)
        weights = jnp.where(jnp.any(weights > 0), weights, 1 / weights.shape[0])
        return weighted_sum(weights, jax.vmap(lambda particle: particle.log_joint)(self.particles))

    @property
    def num_ancestors(self) -> Int[Array, ""]:
        """The number of initial particles that have descendants."""
        return jnp.sum(jnp.zeros(self.ancestors.shape, bool).at[self.ancestors].set(True))

    def finite(self, sites: Sequence[str]) -> Bool[Array, " site"]:
        """For each site, whether some particle's log-probability is finite."""
        by_particle = [jax.vmap(jnp.sum)(self.particles.log_probs[name]) for name in sites]
        return jnp.stack([jnp.any(jnp.isfinite(log_prob)) for log_prob in by_particle])

    def loses_weight(self, log_v: Float[Array, " particle"]) -> Bool[Array, ""]:
        """Whether v is zero for a particle that has weight: its new state, or the way back, is impossible."""
        return ~self.degenerate & jnp.any((self.log_weights > -jnp.inf) & (log_v == -jnp.inf))

    def weigh(self, particles: Any, log_v: Float[Array, " particle"]) -> "Population":
        """The moved particles, their weights multiplied by v. A zero or failed weight stays zero."""
        log_weights = jnp.where(self.log_weights > -jnp.inf, self.log_weights + proper(log_v), -jnp.inf)
        failed = degenerate(log_weights) | jnp.any(jnp.isnan(log_v) & (self.log_weights > -jnp.inf))
        return Population(particles, log_weights, self.log_evidence, self.ancestors, self.degenerate | failed)

    def resample(self, key: PRNGKey, scheme: Resampler, below: float | Array) -> "Population":
        """Resample if the effective sample size has fallen below a fraction of the particles.

        Equal weights are never resampled. If no particle has weight, the population keeps its particles.
        """
        num_particles = self.log_weights.shape[0]
        # The margin is for rounding: equal weights must never be resampled.
        needed = ess(self.log_weights) < below * num_particles * (1 - 1e-5)
        failed = degenerate(self.log_weights)
        stay = jnp.arange(num_particles)
        chosen = jnp.where(needed & ~failed, scheme(key, self.log_weights), stay)
        return Population(
            particles=jax.tree.map(lambda leaf: leaf[chosen], self.particles),
            log_weights=jnp.where(needed | failed, 0.0, self.log_weights),
            log_evidence=self.log_evidence + jnp.where(needed | failed, log_mean_exp(self.log_weights), 0.0),
            ancestors=self.ancestors[chosen],
            degenerate=self.degenerate | failed,
        )
