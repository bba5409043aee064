"""Updating a sequence step by step: resample, move z_t, weigh, for t = 1..T.

A sweep costs O(T): a step computes only its own factors; resampling moves only what the next step needs and records
ancestors; whole trajectories are gathered once, at the end. Everything is written for one population of one instance.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.random import fold_in
from jaxtyping import Array

from popgibbs._random import standard, unrolled
from popgibbs._typing import PRNGKey, Values
from popgibbs.data import Data
from popgibbs.model import INTO_NEXT, Neighbour, Particle, StepConditional, StepSequence, draw, shifted
from popgibbs.moves import Move, MoveKeys
from popgibbs.proposals import Kernel
from popgibbs.smc.context import Context, update_keys
from popgibbs.smc.events import Event, Terms, has_arrays, weighted_log_p
from popgibbs.smc.population import Population, Report
from popgibbs.smc.weights import ess, ess_fraction, normalise, weighted_sum

if TYPE_CHECKING:
    from popgibbs.smc.built import BuiltSampler


class TimeStep(NamedTuple):
    """The part of a step that all particles share."""

    t: Array
    observed: Array
    is_real: Array
    next_is_real: Array


class OldStep(NamedTuple):
    """A step before the sweep over steps, by particle."""

    state: Array
    following: Array
    log_observed: Array
    log_into_next: Array
    prepared: Any


class Walker(eqx.Module):
    """The part of a particle that is carried from step to step."""

    place: Array  # its index before the resampling of this step
    origin: Array  # its index before the first step
    previous: Array  # the new state of the step before
    log_into: Array  # log p(z_t | z_{t-1}) of the old z_t given the new z_{t-1}


class Proposed(NamedTuple):
    """Proposed states and the inputs of their proposals, with axes (step, particle, ...)."""

    keys: Array  # under which they were drawn and are scored
    previous: Array
    following: Array
    origin: Array  # the particle before the first step whose globals this one has
    state: Array
    log_weights: Array  # incoming
    log_v: Array  # incremental


class SequenceEvent(Event):
    """An update of all steps of a sequence."""

    seen: Proposed
    shared: Any  # the globals of each particle before the sweep over steps
    latents: Values  # by particle, after the last step
    log_weights: Array  # and their weights

    def terms(self, sampler: "BuiltSampler", data: Data) -> Terms:
        """The terms: log q uses the weights of each step, log p those after the last step, when all states are new."""
        assert self.block is not None
        block, target = sampler.blocks[self.block], sampler.target(data)
        sequence = StepSequence(target, block.proposal)
        weights = jax.vmap(normalise)(self.seen.log_weights + self.seen.log_v)
        real = sequence.real[:, None]
        log_q = jnp.zeros(())
        if has_arrays(block.kernel):
            log_q = weighted_sum(jnp.where(real, weights, 0.0), score_steps(sequence, block.kernel, self))

        def of_particle(latents: Values, weight: Array) -> Array:
            return weighted_log_p(target, latents, weight)

        log_p = jax.vmap(of_particle)(self.latents, normalise(self.log_weights))
        by_step = jnp.where(sequence.real, jax.vmap(ess_fraction)(weights), 0.0)
        return Terms(log_q, jnp.sum(log_p), jnp.sum(by_step) / jnp.sum(real))


def at_step(sequence: StepSequence, t: int, latents: Values, initial: bool, has_globals: bool) -> StepConditional:
    """The conditional of one step inside a sequence, at the latents of one particle.

    Without `has_globals` the proposal does not see the globals, as in a first draw before them; the model still does.
    """
    states, shared = latents[sequence.model.state], sequence.shared(latents)
    prepared = jax.tree.map(lambda leaf: leaf[t], sequence.prepared(shared if has_globals else None))
    data, exists = sequence.step_data(sequence.observed[t], prepared), jnp.ones((), bool)
    earlier = Neighbour(states[t - 2], exists & (t > 1)) if initial else None
    before, after = Neighbour(states[t - 1], exists, earlier), Neighbour(states[t + 1], exists & (not initial))
    return _conditional(sequence, data, jnp.asarray(t), before, after, shared, initial=initial, has_globals=has_globals)


def _conditional(sequence: StepSequence, *inputs: Any, **options: bool) -> StepConditional:
    return StepConditional(sequence.model, *inputs, names=(sequence.model.state,), given={}, **options)


# The first draw ---------------------------------------------------------------------------------------------------------


def draw_steps(key: PRNGKey, sequence: StepSequence, kernel: Kernel, drawn: Values | None) -> tuple[Array, Array]:
    """The states of one particle, drawn one after another, and their log q; `drawn` holds the globals, if they exist."""
    at, inputs = _first_inputs(sequence, drawn)

    def step(last: tuple[Array, Array], inputs: tuple[Any, ...]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        conditional = at(*last, *inputs)
        values, log_q = kernel.bind(_key_at(key, conditional.t), conditional).draw()
        previous = last[0]
        state = values[sequence.model.state].astype(previous.dtype)
        return (state, previous), (state, jnp.sum(log_q))

    blank = _blank_state(sequence)
    _, (states, log_q) = jax.lax.scan(step, (blank, blank), inputs)
    return states, jnp.sum(jnp.where(sequence.real, log_q, 0.0))


def score_first_steps(key: PRNGKey, sequence: StepSequence, kernel: Kernel, drawn: Values | None, states: Array) -> Array:
    """log q of the first draw, computed for all steps at once."""
    at, inputs = _first_inputs(sequence, drawn)

    def one(previous: Array, earlier: Array, state: Array, *inputs: Any) -> Array:
        conditional = at(previous, earlier, *inputs)
        return jnp.sum(kernel.bind(_key_at(key, conditional.t), conditional).score({sequence.model.state: state}))

    # The draw saw a blank state before its first step.
    blank = _blank_state(sequence)
    previous = shifted(states, 1).at[0].set(blank)
    earlier = shifted(previous, 1).at[0].set(blank)
    log_q = jax.vmap(one)(previous, earlier, states, *inputs)
    return jnp.sum(jnp.where(sequence.real, log_q, 0.0))


def _first_inputs(sequence: StepSequence, drawn: Values | None) -> tuple[Callable[..., StepConditional], tuple[Any, ...]]:
    """A function from the inputs of a step to its conditional, and these inputs for all steps."""
    has_globals = drawn is not None
    shared = sequence.shared(drawn) if has_globals else None

    def at(previous: Array, earlier: Array, t: Array, observed: Array, prepared: Any) -> StepConditional:
        before = Neighbour(previous, t > 0, before=Neighbour(earlier, t > 1))
        after = Neighbour(previous, jnp.zeros((), bool))
        data = sequence.step_data(observed, prepared)
        return _conditional(sequence, data, t, before, after, shared, initial=True, has_globals=has_globals)

    return at, (jnp.arange(sequence.num_steps), sequence.observed, sequence.prepared(shared))


def _key_at(key: PRNGKey, t: Array) -> PRNGKey:
    return standard(fold_in(unrolled(key), t))


def _blank_state(sequence: StepSequence) -> Array:
    values = jax.eval_shape(lambda: draw(lambda: sequence.model(**sequence.data.values), jax.random.key(0)))
    states = values[sequence.model.state]
    return jnp.zeros(states.shape[1:], states.dtype)


# The sweep --------------------------------------------------------------------------------------------------------------


def update_steps(
    key: PRNGKey,
    context: Context,
    sequence: StepSequence,
    kernel: Kernel | None,
    move: Move,
    population: Population,
) -> tuple[Population, SequenceEvent, Report]:
    """Update all steps, with resampling and weighing at each; without a kernel the move uses no proposal."""
    name, observed = sequence.model.state, sequence.model.observed
    particles, num_particles = population.particles, population.log_weights.shape[0]
    shared = jax.vmap(sequence.shared)(particles.latents)

    def step(population: Population, inputs: tuple[TimeStep, OldStep]) -> tuple[Population, Any]:
        time_step, old = inputs
        key_resample, keys = update_keys(_key_at(key, time_step.t), num_particles)
        # A padded step changes nothing.
        threshold = jnp.where(time_step.is_real, context.ess_threshold, 0.0)
        population = population.resample(key_resample, context.resampler, threshold)
        walkers: Walker = population.particles
        old, common = jax.tree.map(lambda leaf: leaf[walkers.origin], (old, shared))

        def one(keys: MoveKeys, walker: Walker, old: OldStep, common: Any) -> Any:
            conditional = _inside(sequence, time_step, walker.previous, old.following, common, old.prepared)
            factors = {name: walker.log_into, observed: old.log_observed, INTO_NEXT: old.log_into_next}
            proposal = None if kernel is None else kernel.bind(keys.draw, conditional)
            return move(keys, proposal, conditional, Particle({name: old.state}, factors))

        moved, log_v, info = jax.vmap(one)(keys, walkers, old, common)
        log_v, info_log_v = jnp.sum(log_v, axis=-1), jnp.sum(info.log_v, axis=-1)
        state = jnp.where(time_step.is_real, moved.latents[name], old.state)
        seen = Proposed(
            *(keys.draw, walkers.previous, old.following, walkers.origin),
            *(info.proposed[name], population.log_weights, info_log_v),
        )
        onward = Walker(jnp.arange(num_particles), walkers.origin, state, moved.log_probs[INTO_NEXT])
        impossible = time_step.is_real & population.loses_weight(log_v)
        population = population.weigh(onward, jnp.where(time_step.is_real, log_v, 0.0))
        log_probs = {site: jnp.where(time_step.is_real, moved.log_probs[site], 0.0) for site in (name, observed)}
        report = (ess(population.log_weights), jnp.mean(info.accepted), impossible)
        return population, ((walkers.place, (state, log_probs)), seen, report)

    time_steps = _time_steps(sequence)
    inputs = time_steps, _old_steps(sequence, time_steps, particles, shared)
    first = particles.log_probs[name][:, 0]
    stay = jnp.arange(num_particles)
    start = _with(population, Walker(stay, stay, jnp.zeros_like(inputs[1].state[0]), first))
    walked, ((places, left), seen, reports) = jax.lax.scan(step, start, inputs)
    states, log_probs = _trajectories(places, left)
    others = jax.tree.map(lambda leaf: leaf[walked.particles.origin], particles)
    moved = Particle({**others.latents, name: states}, {**others.log_probs, **log_probs})
    event = SequenceEvent(seen, shared, moved.latents, walked.log_weights, block=context.index)
    size, acceptance = (jnp.sum(jnp.where(sequence.real, by_step, 0.0)) for by_step in reports[:2])
    num_real = jnp.sum(sequence.real)
    nothing_stale = jnp.zeros(len(particles.log_probs))  # a step accepts or rejects all of its factors together
    report = Report(size / num_real, acceptance / num_real, jnp.any(reports[2]), nothing_stale)
    return _with(walked, moved), event, report


def score_steps(sequence: StepSequence, kernel: Kernel, event: SequenceEvent) -> Array:
    """log q of every proposed state with axes (step, particle), as a function of the proposal's arrays."""
    num_particles = event.log_weights.shape[0]
    prepared = _steps_first(jax.vmap(sequence.prepared, axis_size=num_particles)(event.shared))

    def one_step(time_step: TimeStep, prepared: Any, seen: Proposed) -> Array:
        def one(seen: Proposed) -> Array:
            mine, common = jax.tree.map(lambda leaf: leaf[seen.origin], (prepared, event.shared))
            conditional = _inside(sequence, time_step, seen.previous, seen.following, common, mine)
            return jnp.sum(kernel.bind(seen.keys, conditional).score({sequence.model.state: seen.state}))

        return jax.vmap(one)(seen)

    return jax.vmap(one_step)(_time_steps(sequence), prepared, event.seen)


def _inside(
    sequence: StepSequence, time_step: TimeStep, previous: Array, following: Array, shared: Any, prepared: Any
) -> StepConditional:
    before, after = Neighbour(previous, time_step.t > 0), Neighbour(following, time_step.next_is_real)
    data = sequence.step_data(time_step.observed, prepared)
    return _conditional(sequence, data, time_step.t, before, after, shared)


def _time_steps(sequence: StepSequence) -> TimeStep:
    next_is_real = jnp.append(sequence.real[1:], False)
    return TimeStep(jnp.arange(sequence.num_steps), sequence.observed, sequence.real, next_is_real)


def _old_steps(sequence: StepSequence, time_steps: TimeStep, particles: Particle, shared: Any) -> OldStep:
    """The old values of all steps, with axes (step, particle, ...)."""
    name, observed = sequence.model.state, sequence.model.observed
    num_particles = particles.latents[name].shape[0]
    prepared = jax.vmap(sequence.prepared, axis_size=num_particles)(shared)
    states, log_states, log_observed, prepared = _steps_first(
        (particles.latents[name], particles.log_probs[name], particles.log_probs[observed], prepared)
    )
    log_into_next = jnp.where(time_steps.next_is_real[:, None], shifted(log_states, -1), 0.0)
    return OldStep(states, shifted(states, -1), log_observed, log_into_next, prepared)


def _steps_first(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), tree)


def _with(population: Population, particles: Any) -> Population:
    return eqx.tree_at(lambda p: p.particles, population, particles)


def _trajectories(places: Array, left: Any) -> Any:
    """The trajectory of each final particle, (particle, step, ...), traced backwards through the ancestors."""

    def back(where: Array, step: Any) -> tuple[Array, Any]:
        place, values = step
        return place[where], jax.tree.map(lambda leaf: leaf[where], values)

    last = jnp.arange(places.shape[1])
    return _steps_first(jax.lax.scan(back, last, (places, left), reverse=True)[1])
