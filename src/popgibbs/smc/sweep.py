"""The amortized population Gibbs sampler (the paper, Algorithm 2).

    z ~ q(z | x),  w = p(x, z) / q(z | x)                                              initialise
    learn from z, w                                                                    observe
    for k = 2, ..., K:                                                                 run
        for b = 1, ..., B:                                                             sweep
            z, w = resample(z, w)                                                      Block.update
            z'_b ~ q(z_b | x, z_-b)
            w = w p(x, z'_b, z_-b) q(z_b | x, z_-b) / (p(x, z_b, z_-b) q(z'_b | x, z_-b))
            z_b = z'_b
            learn from z, w                                                            observe

All particles of a population execute each line together. `initialise` and `Block.update` are written for one population
of one instance, and `rows.py` maps them over populations and instances. An observer sees every step as it happens, so
gradients are accumulated without storing the sweeps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from popgibbs._typing import PRNGKey
from popgibbs.data import Data
from popgibbs.smc.bridge import Bridge, BridgeEvent, anneal, from_prior, tempered
from popgibbs.smc.built import BuiltSampler
from popgibbs.smc.events import Event
from popgibbs.smc.initial import initialise
from popgibbs.smc.population import Population, Report
from popgibbs.smc.rows import fold_in_rows, into_instances, into_rows, over_rows, row_keys, rows_of
from popgibbs.smc.weights import ess


class Info(NamedTuple):
    """Numbers about a sweep."""

    mean_log_joint: Array  # Σ w̄ log p(x, z) after the last block, before resampling
    log_evidence: Array
    ess: Array  # by block
    acceptance: Array  # by block
    impossible: Array  # by block: whether a particle that had weight lost all of it, which biases `Reweight`
    stale: Array  # by site: disagreement of carried log-probabilities with fresh ones, see `staleness.py`
    num_ancestors: Array  # initial particles that still have descendants
    finite: Array  # by site, of the initial step only: whether some particle's log-probability is finite


Observe = Callable[[Any, BuiltSampler, Data, Event], Any]
"""Maps a carry, the sampler, the data by row and an event by row to the next carry."""


def run(
    sampler: BuiltSampler,
    keys: Array,
    batch: Data,
    *,
    num_sweeps: int,
    num_particles: int,
    num_populations: int = 1,
    observe: Observe | None = None,
    carry: Any = None,
) -> tuple[Population, Info, Any]:
    """Run the initial step and the sweeps for a batch of instances, with one key per instance.

    Arrays of the population have axes (instance, population, particle, ...), those of the info (sweep, instance,
    population, ...), the initial step first.
    """
    observe = observe or _ignore
    keys, batch = row_keys(keys, num_populations), rows_of(batch, num_populations)
    key_first = fold_in_rows(keys, 0)
    bridge = sampler.bridge_for(batch)
    if bridge is None:
        population, event = over_rows(initialise, 0, None, 0, None)(key_first, sampler, batch, num_particles)
    else:
        population, event = _cross(bridge, sampler, key_first, batch, num_particles)
    carry = observe(carry, sampler, batch, event)
    info = jax.tree.map(lambda leaf: leaf[None], _initial_info(sampler, population))
    if num_sweeps:
        population, rest, carry = _sweeps(
            sampler, keys, batch, population, 1, num_sweeps, capacity=num_sweeps, observe=observe, carry=carry
        )
        info = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), info, rest)
    return into_instances(population, 0, num_populations), into_instances(info, 1, num_populations), carry


def sweep_on(
    sampler: BuiltSampler,
    keys: Array,
    batch: Data,
    population: Population,
    *,
    first_sweep: int | Array,
    num_sweeps: int | Array,
    capacity: int,
) -> tuple[Population, Info]:
    """Run more sweeps of the populations that `run` returned.

    The number of sweeps may be traced, so that one compiled program serves any number up to `capacity`. The info has
    `capacity` entries along its axis of sweeps; those after `num_sweeps` mean nothing.
    """
    num_populations = population.log_evidence.shape[1]
    keys, batch = row_keys(keys, num_populations), rows_of(batch, num_populations)
    moved, info, _ = _sweeps(
        sampler,
        keys,
        batch,
        into_rows(population),
        first_sweep,
        num_sweeps,
        capacity=capacity,
        observe=_ignore,
        carry=None,
    )
    return into_instances(moved, 0, num_populations), into_instances(info, 1, num_populations)


def sweep(
    keys: Array,
    sampler: BuiltSampler,
    batch: Data,
    population: Population,
    number: Array,
    observe: Observe,
    carry: Any,
) -> tuple[Population, Info, Any]:
    """Update every block once, in order, for all rows."""
    reports = []
    for index in range(len(sampler.blocks)):
        keys_block = fold_in_rows(keys, number * len(sampler.blocks) + index)
        population, event, report = over_rows(update, 0, None, None, 0, 0)(keys_block, sampler, index, batch, population)
        carry = observe(carry, sampler, batch, event)
        reports.append(report)
    return population, _info(sampler, population, reports), carry


def _cross(
    bridge: Bridge, sampler: BuiltSampler, keys: Array, batch: Data, num_particles: int
) -> tuple[Population, Event]:
    """The population at the end of a bridge from the prior, for all rows."""
    arrays, static = eqx.partition(sampler, eqx.is_array)

    def heated(sampler: BuiltSampler, data: Data, step: Array, population: Population) -> Population:
        return over_rows(anneal, None, 0, 0, None, None)(
            sampler, data, population, bridge.beta(step - 1), bridge.beta(step)
        )

    def one(step: Array, population: Population) -> Population:
        # The barrier is that of `_sweeps`.
        fresh, data, step = jax.lax.optimization_barrier((arrays, batch, step))
        sampler = eqx.combine(fresh, static)
        sweep_keys = fold_in_rows(keys, 1)
        moved, _, _ = sweep(sweep_keys, tempered(sampler, bridge.beta(step)), data, population, step, _ignore, None)
        return heated(sampler, data, step + 1, moved)

    prior = over_rows(from_prior, 0, None, 0, None)(fold_in_rows(keys, 0), sampler, batch, num_particles)
    population = jax.lax.fori_loop(1, bridge.num_temperatures, one, heated(sampler, batch, jnp.ones((), int), prior))
    return population, BridgeEvent(population.particles.latents, population.log_weights, block=None)


def update(
    key: PRNGKey, sampler: BuiltSampler, index: int, data: Data, population: Population
) -> tuple[Population, Event, Report]:
    """Update one block of one population of one instance."""
    return sampler.blocks[index].update(key, sampler.context(index, data), population)


def _sweeps(
    sampler: BuiltSampler,
    keys: Array,
    batch: Data,
    population: Population,
    first_sweep: int | Array,
    num_sweeps: int | Array,
    *,
    capacity: int,
    observe: Observe,
    carry: Any,
) -> tuple[Population, Info, Any]:
    """Loop over sweeps. The loop is never differentiated, so memory does not grow with the number of sweeps."""
    arrays, static = eqx.partition(sampler, eqx.is_array)
    infos = _blank_infos(sampler, population, capacity)

    def one(count: Array, state: Any) -> Any:
        population, infos, carry = state
        # The barrier ties the inputs to the loop's counter, so that XLA hoists nothing out of the loop. It would hoist
        # each use separately, and then no longer see that drawing, scoring and differentiating a proposal share one
        # evaluation of its network.
        fresh, data, number = jax.lax.optimization_barrier((arrays, batch, first_sweep + count))
        moved, info, carry = sweep(keys, eqx.combine(fresh, static), data, population, number, observe, carry)
        return moved, jax.tree.map(lambda all, new: all.at[count].set(new), infos, info), carry

    return jax.lax.fori_loop(0, num_sweeps, one, (population, infos, carry))


def _blank_infos(sampler: BuiltSampler, population: Population, capacity: int) -> Info:
    """Room for the numbers about so many sweeps."""
    by_row = (capacity, *population.log_evidence.shape)
    by_block, by_site = (*by_row, len(sampler.blocks)), (*by_row, len(sampler.sites))
    dtype = population.log_weights.dtype
    return Info(
        mean_log_joint=jnp.zeros(by_row, dtype),
        log_evidence=jnp.zeros(by_row, dtype),
        ess=jnp.zeros(by_block, dtype),
        acceptance=jnp.zeros(by_block, dtype),
        impossible=jnp.zeros(by_block, bool),
        stale=jnp.zeros(by_site, dtype),
        num_ancestors=jnp.zeros(by_row, int),
        finite=jnp.zeros(by_site, bool),
    )


def _initial_info(sampler: BuiltSampler, population: Population) -> Info:
    shape = population.log_evidence.shape
    report = Report(
        ess=jax.vmap(ess)(population.log_weights),
        acceptance=jnp.ones(shape),
        impossible=jnp.zeros(shape, bool),
        stale=jnp.zeros((*shape, len(sampler.sites))),
    )
    finite = jax.vmap(lambda p: p.finite([site.name for site in sampler.sites]))(population)
    return _info(sampler, population, [report] * len(sampler.blocks))._replace(finite=finite)


def _info(sampler: BuiltSampler, population: Population, reports: list[Report]) -> Info:
    by_block = jax.tree.map(lambda *blocks: jnp.stack(blocks, axis=-1), *reports)
    return Info(
        mean_log_joint=jax.vmap(lambda p: p.mean_log_joint)(population),
        log_evidence=jax.vmap(lambda p: p.total_log_evidence)(population),
        ess=by_block.ess,
        acceptance=by_block.acceptance,
        impossible=by_block.impossible,
        stale=jnp.max(by_block.stale, axis=-1),
        num_ancestors=jax.vmap(lambda p: p.num_ancestors)(population),
        finite=jnp.zeros((*population.log_evidence.shape, len(sampler.sites)), bool),
    )


def _ignore(carry: Any, *_: Any) -> Any:
    return carry
