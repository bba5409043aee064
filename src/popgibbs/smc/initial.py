"""The initial step: blocks draw in order, each given the latents drawn so far."""

import jax
import jax.numpy as jnp
from jax.random import fold_in
from jaxtyping import Array, Float

from popgibbs._typing import PRNGKey, Values
from popgibbs.data import Data
from popgibbs.model import Particle
from popgibbs.smc.block import Block
from popgibbs.smc.built import BuiltSampler
from popgibbs.smc.events import Event, Terms, weighted_log_p
from popgibbs.smc.population import Population
from popgibbs.smc.weights import ess_fraction, normalise, weighted_sum

_LARGEST_GROUP = 32  # of particles whose keys share a mixture density


def initial_plan(blocks: tuple[Block, ...]) -> list[tuple[int, tuple[str, ...]]]:
    """The sites that each block draws first: a site is drawn by the first block that contains it."""
    drawn: set[str] = set()
    plan = []
    for index, block in enumerate(blocks):
        if fresh := tuple(name for name in block.sites if name not in drawn):
            plan.append((index, fresh))
            drawn |= set(fresh)
    return plan


def draw_initial(key: PRNGKey, sampler: BuiltSampler, data: Data) -> tuple[Values, Float[Array, ""]]:
    """One particle drawn from the initial proposals, and its log q(z | x)."""
    sampler = sampler.start
    latents: Values = {}
    log_q = jnp.zeros(())
    for index, names in initial_plan(sampler.blocks):
        block, context = sampler.blocks[index], sampler.context(index, data)
        values, block_log_q = block.draw_first(fold_in(key, index), context, names, latents)
        # XLA fuses a draw into all that uses it. With three learned proposals one below the other, each of which has few
        # numbers, it computed them over and over again, and compiled for half an hour.
        latents |= jax.lax.optimization_barrier(values)
        log_q += block_log_q
    return latents, log_q


def score_initial(key: PRNGKey, sampler: BuiltSampler, data: Data, latents: Values) -> Float[Array, ""]:
    """log q(z | x) of the initial proposals."""
    sampler = sampler.start
    drawn: Values = {}
    log_q = jnp.zeros(())
    for index, names in initial_plan(sampler.blocks):
        block, context = sampler.blocks[index], sampler.context(index, data)
        values = {name: latents[name] for name in names}
        log_q += block.score_first(fold_in(key, index), context, names, drawn, values)
        drawn |= values
    return log_q


class InitialEvent(Event):
    """The initial step of a population."""

    keys: Array  # under which the proposals drew and score
    latents: Values
    log_v: Array  # log p(x, z) − log q(z | x)

    def terms(self, sampler: BuiltSampler, data: Data) -> Terms:
        weights = normalise(self.log_v)
        target, proposing = sampler.target(data), sampler.with_constant_model

        def of_particle(key: Array, latents: Values, weight: Array) -> tuple[Array, Array]:
            log_q = weighted_sum(weight, score_initial(key, proposing, data, latents))
            return log_q, weighted_log_p(target, latents, weight)

        log_q, log_p = jax.vmap(of_particle)(self.keys, self.latents, weights)
        return Terms(jnp.sum(log_q), jnp.sum(log_p), ess_fraction(weights))


def _log_mixture(keys: Array, sampler: BuiltSampler, data: Data, latents: Values) -> Float[Array, " particle"]:
    """log 1/G Σ_g q(z | x, g) over the keys g of a group of particles, instead of that of each particle's own key.

    The estimate stays unbiased (the balance heuristic of Veach and Guibas, 1995), and a particle in a mode that its own
    key would hardly reach no longer has a huge weight, if other keys reach it.
    """
    num_particles = keys.shape[0]
    size = next(g for g in range(min(num_particles, _LARGEST_GROUP), 0, -1) if num_particles % g == 0)

    def of_group(keys: Array, latents: Values) -> Array:
        def under(key: Array) -> Array:
            return jax.vmap(lambda latents: score_initial(key, sampler, data, latents))(latents)

        return jax.nn.logsumexp(jax.vmap(under)(keys), axis=0) - jnp.log(size)

    grouped = jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), (keys, latents))
    return jax.vmap(of_group)(*grouped).reshape(-1)


def initialise(key: PRNGKey, sampler: BuiltSampler, data: Data, num_particles: int) -> tuple[Population, InitialEvent]:
    """Draw a population from the initial proposals, with log w = log p(x, z) − log q(z | x)."""
    keys = jax.random.split(key, num_particles)
    latents, log_q = jax.vmap(lambda key: draw_initial(key, sampler, data))(keys)
    if any(block.kernel is not None and block.kernel.draws_from_many for block in sampler.start.blocks):
        log_q = _log_mixture(keys, sampler, data, latents)
    log_probs = jax.vmap(sampler.target(data).log_probs)(latents)
    particles = Particle(latents, log_probs)
    log_p = jax.vmap(lambda particle: particle.log_joint)(particles)
    start = Population(
        particles=particles,
        log_weights=jnp.zeros(num_particles),
        log_evidence=jnp.zeros(()),
        ancestors=jnp.arange(num_particles),
        degenerate=jnp.zeros((), bool),
    )
    log_v = log_p - log_q
    return start.weigh(particles, log_v), InitialEvent(keys, latents, log_v, block=None)
