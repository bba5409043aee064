"""The APG sampler (the paper, Algorithm 1): an initial proposal, then sweeps of block updates.

`initialise` and `update` are written for one population of one instance. `run` lifts them over populations and instances
and scans over sweeps; an observer sees every block update, which is how gradients are accumulated without being stored.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.random import fold_in
from jaxtyping import Array

from popgibbs._typing import PRNGKey, Resampler, Values
from popgibbs.data import Data
from popgibbs.model import Conditional, Particle, Partition, Sequence, Site, Summed, Target, condition, undrawn
from popgibbs.proposals import Enumerated, Kernel
from popgibbs.smc.blocks import Block, SequenceBlock
from popgibbs.smc.population import Population, Report
from popgibbs.smc.sequences import Walk, block_keys, draw_first, score_first, walk
from popgibbs.smc.staleness import disagreement
from popgibbs.smc.weights import ess


class Sampler(eqx.Module):
    """A model and its blocks, checked against each other. The arrays of `model` are θ, those of `blocks` φ."""

    model: Any
    blocks: tuple[Block, ...]
    first: "Sampler | None"  # whose initial proposals draw the first particles, if not its own; it has no model
    sites: tuple[Site, ...] = eqx.field(static=True)
    partitions: tuple[Partition, ...] = eqx.field(static=True)  # how each block's weight splits
    summed: tuple[Summed | None, ...] = eqx.field(static=True)  # the sites that each block's move sums out
    resampler: Resampler = eqx.field(static=True)
    resample_below: float = eqx.field(static=True)
    unproved: tuple[int, ...] = eqx.field(static=True)  # blocks that split although independence was only probed
    small_example: bool = eqx.field(static=True)  # too small to show what padding does
    cannot_pad: str | None = eqx.field(static=True)  # why instances of several sizes are refused, if they are

    def target(self, data: Data) -> Target:
        return Target(self.model, data, self.sites)

    def conditional(self, index: int, data: Data, latents: Values) -> Conditional:
        sites, partition = self.blocks[index].sites, self.partitions[index]
        return condition(self.target(data), latents, sites, partition, self.summed[index])

    def without_model(self) -> "Sampler":
        return replace(self, model=None)

    @property
    def start(self) -> "Sampler":
        """The sampler that draws the first particles."""
        return self if self.first is None else replace(self.first, model=self.model).start

    def sequence(self, index: int, data: Data) -> Sequence:
        """The instance as the `SequenceBlock` of that index goes through it."""
        return Sequence(self.model, data, self.blocks[index].proposal)


class Event(NamedTuple):
    """One step of one population as an observer sees it: every array has the particles as its leading axis."""

    keys: Array  # under which the proposals drew and score
    latents: Values  # before the step; the values of the block are overridden by `proposed`
    proposed: Values
    log_weights: Array  # incoming
    log_v: Array  # incremental, by element of the block


class Info(NamedTuple):
    """What happened in a sweep, by block where it says so."""

    log_joint: Array  # after the last block, before resampling
    log_evidence: Array
    ess: Array  # by block
    acceptance: Array  # by block
    impossible: Array  # by block: whether a particle that had weight lost all of it, which biases what is weighed
    stale: Array  # by site: how far carried log-probabilities were from fresh ones, in units of what rounding explains
    diversity: Array  # initial particles that still have descendants
    finite: Array  # by site: whether some particle's log-probability is finite


Observe = Callable[[Any, Sampler, int | None, Data, Event | Walk], Any]


def initial_plan(blocks: tuple[Block, ...]) -> list[tuple[int, tuple[str, ...]]]:
    """Which block draws which sites first: the first block that contains a site."""
    drawn: set[str] = set()
    plan = []
    for index, block in enumerate(blocks):
        if fresh := tuple(name for name in block.sites if name not in drawn):
            plan.append((index, fresh))
            drawn |= set(fresh)
    return plan


def draw_initial(key: PRNGKey, sampler: Sampler, data: Data) -> tuple[Values, Array]:
    """One particle from the initial proposals in block order, each seeing what was drawn so far, and its log q."""
    return _initial(key, sampler.start, data, None)


def score_initial(key: PRNGKey, sampler: Sampler, data: Data, latents: Values) -> Array:
    """log q(z | x) of the initial proposals."""
    return _initial(key, sampler.start, data, latents)[1]


def _initial(key: PRNGKey, sampler: Sampler, data: Data, fixed: Values | None) -> tuple[Values, Array]:
    latents: Values = {}
    log_q = jnp.zeros(())
    for index, names in initial_plan(sampler.blocks):
        first = _first_steps if isinstance(sampler.blocks[index], SequenceBlock) else _first_block
        values, block_log_q = first(fold_in(key, index), sampler, index, names, data, latents, fixed)
        latents |= values
        log_q += block_log_q
    return latents, log_q


def _first_block(
    key: PRNGKey,
    sampler: Sampler,
    index: int,
    names: tuple[str, ...],
    data: Data,
    latents: Values,
    fixed: Values | None,
) -> tuple[Values, Array]:
    kernel: Kernel = sampler.blocks[index].first_kernel
    # Only the sum of log q counts here, so a first draw need not split; an enumeration runs over elements even so.
    partition = sampler.partitions[index] if isinstance(kernel, Enumerated) else Partition(sampler.sites)
    conditional = Conditional(sampler.target(data), dict(latents), names, partition, initial=True)
    if fixed is None:
        values, elements = kernel.draw(key, conditional)
    else:
        values = {name: fixed[name] for name in names}
        elements = kernel.score(key, conditional, values)
    return values, jnp.sum(elements)


def _first_steps(
    key: PRNGKey,
    sampler: Sampler,
    index: int,
    names: tuple[str, ...],
    data: Data,
    latents: Values,
    fixed: Values | None,
) -> tuple[Values, Array]:
    """The states of a sequence, which may be drawn before the globals are."""
    (name,), kernel = names, sampler.blocks[index].kernel
    sequence = sampler.sequence(index, data)
    globals_drawn = None if undrawn(sampler.sites, (*latents, name)) else latents
    if fixed is None:
        states, log_q = draw_first(key, sequence, kernel, globals_drawn)
        return {name: states}, log_q
    return {name: fixed[name]}, score_first(key, sequence, kernel, globals_drawn, fixed[name])


def initialise(key: PRNGKey, sampler: Sampler, data: Data, num_particles: int) -> tuple[Population, Event]:
    """Draw a population from the initial proposals, log w = log p(x, z) − log q(z | x)."""
    keys = jax.random.split(key, num_particles)
    latents, log_q = jax.vmap(lambda key: draw_initial(key, sampler, data))(keys)
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
    event = Event(keys, latents, {}, start.log_weights, log_v[:, None])
    return start.weigh(particles, log_v), event


def update(
    key: PRNGKey, sampler: Sampler, index: int, data: Data, population: Population
) -> tuple[Population, Event | Walk, Report]:
    """Resample, move a block, multiply the weights by the move's incremental weights."""
    block = sampler.blocks[index]
    if isinstance(block, SequenceBlock):
        sequence, resampler = sampler.sequence(index, data), sampler.resampler
        return walk(key, sequence, block.kernel, block.move, population, resampler, sampler.resample_below)
    num_particles = population.log_weights.shape[0]
    key_resample, keys, keys_accept = block_keys(key, num_particles)
    population = population.resample(key_resample, sampler.resampler, sampler.resample_below)

    def move(key_draw: PRNGKey, key_accept: PRNGKey, particle: Particle) -> Any:
        conditional = sampler.conditional(index, data, particle.latents)
        moved, log_v, info = block.move(key_draw, key_accept, block.kernel, conditional, particle)
        acceptance = jnp.sum(jnp.where(conditional.real, info.accepted, 0.0)) / jnp.sum(conditional.real)
        return moved, jnp.sum(log_v), info, acceptance, _stale(sampler, index, conditional, moved)

    moved, log_v, info, acceptance, stale = jax.vmap(move)(keys, keys_accept, population.particles)
    stale = jnp.max(jnp.where(population.log_weights[:, None] > -jnp.inf, stale, 0.0), axis=0)
    event = Event(
        keys=keys,
        latents=population.particles.latents,
        proposed=info.proposed,
        log_weights=population.log_weights,
        log_v=info.log_v,
    )
    impossible = population.loses_weight(log_v)
    population = population.weigh(moved, log_v)
    return population, event, Report(ess(population.log_weights), jnp.mean(acceptance), impossible, stale)


def _stale(sampler: Sampler, index: int, conditional: Conditional, moved: Particle) -> Array:
    """By site: whether elements that were accepted one by one left the log-probabilities of others as they were.

    A block that is weighed or accepted as a whole computes all of its factors, so there is nothing to compare.
    """
    if index not in sampler.unproved:
        return jnp.zeros(len(sampler.sites))
    fresh = conditional.log_probs({name: moved.latents[name] for name in conditional.names})
    found = {name: jnp.max(disagreement(moved.log_probs[name], fresh[name])) for name in fresh}
    return jnp.stack([found.get(site.name, jnp.zeros(())) for site in sampler.sites])


def run(
    sampler: Sampler,
    keys: Array,
    batch: Data,
    *,
    num_sweeps: int,
    num_particles: int,
    num_populations: int = 1,
    observe: Observe | None = None,
    carry: Any = None,
) -> tuple[Population, Info, Any]:
    """Initial step and sweeps for a batch of instances, with a key each.

    Arrays of the population have axes (instance, population, particle, ...), those of the info (sweep, instance,
    population, ...), the initial step first.
    """
    observe = observe or _ignore
    keys, batch = _rows(keys, batch, num_populations)
    population, event = over_rows(initialise, 0, None, 0, None)(_folded(keys, 0), sampler, batch, num_particles)
    carry = observe(carry, sampler, None, batch, event)
    start = Report(
        jax.vmap(ess)(population.log_weights),
        jnp.ones(keys.shape),
        jnp.zeros(keys.shape, bool),
        jnp.zeros((*keys.shape, len(sampler.sites))),
    )
    reports = [start] * len(sampler.blocks)
    first = _info(sampler, population, reports)
    population, rest, carry = _sweeps(sampler, keys, batch, population, 1, num_sweeps, observe, carry)
    info = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)
    return _unflatten(population, 0, num_populations), _unflatten(info, 1, num_populations), carry


def go_on(
    sampler: Sampler, keys: Array, batch: Data, population: Population, first_sweep: int | Array, num_sweeps: int
) -> tuple[Population, Info]:
    """More sweeps of populations that `run` returned."""
    num_populations = population.log_evidence.shape[1]
    keys, batch = _rows(keys, batch, num_populations)
    flat = jax.tree.map(lambda leaf: jnp.reshape(leaf, (-1, *leaf.shape[2:])), population)
    flat, info, _ = _sweeps(sampler, keys, batch, flat, first_sweep, num_sweeps, _ignore, None)
    return _unflatten(flat, 0, num_populations), _unflatten(info, 1, num_populations)


def _sweeps(
    sampler: Sampler,
    keys: Array,
    batch: Data,
    population: Population,
    first_sweep: int | Array,
    num_sweeps: int,
    observe: Observe,
    carry: Any,
) -> tuple[Population, Info, Any]:
    """A scan over sweeps, a plain loop over blocks. It is never differentiated, so memory is flat in the sweeps."""
    arrays, static = eqx.partition(sampler, eqx.is_array)

    def sweep(state: Any, number: Array) -> tuple[Any, Info]:
        population, carry = state
        # Tied to the loop's counter, nothing is hoisted out of the loop. Hoisting happens use by use, after which the
        # compiler no longer sees that drawing, scoring and differentiating a proposal share one run of its network.
        fresh, data, number = jax.lax.optimization_barrier((arrays, batch, number))
        sampler = eqx.combine(fresh, static)
        reports = []
        for index in range(len(sampler.blocks)):
            keys_block = _folded(keys, number * len(sampler.blocks) + index)
            population, event, report = over_rows(update, 0, None, None, 0, 0)(
                keys_block, sampler, index, data, population
            )
            carry = observe(carry, sampler, index, data, event)
            reports.append(report)
        return (population, carry), _info(sampler, population, reports)

    (population, carry), info = jax.lax.scan(sweep, (population, carry), first_sweep + jnp.arange(num_sweeps))
    return population, info, carry


def over_populations(
    function: Callable[[Sampler, Data, Population], Any], sampler: Sampler, batch: Data, population: Population
) -> Any:
    """A function of one population, for those that `run` returned."""
    num_populations = population.log_evidence.shape[1]
    flat = jax.tree.map(lambda leaf: jnp.reshape(leaf, (-1, *leaf.shape[2:])), population)
    found = over_rows(function, None, 0, 0)(sampler, _repeated(batch, num_populations), flat)
    return _unflatten(found, 0, num_populations)


def over_rows(function: Callable[..., Any], *in_axes: int | None) -> Callable[..., Any]:
    """Lift a function of one population over the rows of a batch; arguments that are not arrays pass as they are.

    A row is one population of one instance. One flat axis rather than two: XLA on CPU handles arrays of many axes badly.
    """

    def lifted(*arguments: Any) -> Any:
        dynamic, static = zip(*(eqx.partition(argument, eqx.is_array) for argument in arguments), strict=True)

        def call(*dynamic: Any) -> Any:
            return function(*(eqx.combine(d, s) for d, s in zip(dynamic, static, strict=True)))

        return jax.vmap(call, in_axes)(*dynamic)

    return lifted


def _rows(keys: Array, batch: Data, num_populations: int) -> tuple[Array, Data]:
    """Keys of all populations, by the instance's key and the population's index, and their data."""
    numbers = jnp.arange(num_populations)
    keys = jax.vmap(lambda key: jax.vmap(lambda number: fold_in(key, number))(numbers))(keys).reshape(-1)
    return keys, _repeated(batch, num_populations)


def _repeated(batch: Data, num_populations: int) -> Data:
    """The data that each row sees."""
    if num_populations == 1:
        return batch
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, num_populations, axis=0), batch)


def _unflatten(tree: Any, axis: int, num_populations: int) -> Any:
    return jax.tree.map(lambda leaf: leaf.reshape(*leaf.shape[:axis], -1, num_populations, *leaf.shape[axis + 1 :]), tree)


def _folded(keys: Array, number: Any) -> Array:
    return jax.vmap(lambda key: fold_in(key, number))(keys)


def _info(sampler: Sampler, population: Population, reports: list[Report]) -> Info:
    by_block = jax.tree.map(lambda *blocks: jnp.stack(blocks, axis=-1), *reports)
    return Info(
        log_joint=jax.vmap(lambda p: p.mean_log_joint)(population),
        log_evidence=jax.vmap(lambda p: p.total_log_evidence)(population),
        ess=by_block.ess,
        acceptance=by_block.acceptance,
        impossible=by_block.impossible,
        stale=jnp.max(by_block.stale, axis=-1),
        diversity=jax.vmap(lambda p: p.diversity)(population),
        finite=jax.vmap(lambda p: p.finite([site.name for site in sampler.sites]))(population),
    )


def _ignore(carry: Any, *_: Any) -> Any:
    return carry
