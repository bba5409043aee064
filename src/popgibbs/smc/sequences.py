"""Going through a sequence step by step: resample, move z_t, weigh, for t = 1..T.

A sweep costs O(T): a step touches its own factors only; resampling moves what a step needs, and remembers ancestors;
whole trajectories are gathered once, at the end. Everything is written for one population of one instance.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.random import fold_in
from jaxtyping import Array

from popgibbs._typing import PRNGKey, Resampler, Values
from popgibbs.model import INTO_NEXT, Neighbour, Particle, Sequence, StepConditional, draw, shifted
from popgibbs.moves import Move
from popgibbs.proposals import Kernel
from popgibbs.smc.population import Population, Report
from popgibbs.smc.weights import ess


class Moment(NamedTuple):
    """What the particles of a step have in common."""

    t: Array
    observed: Array
    is_real: Array
    next_is_real: Array


class Given(NamedTuple):
    """A step as it was when the block began, by particle."""

    state: Array
    following: Array
    log_observed: Array
    log_into_next: Array
    prepared: Any


class Walker(eqx.Module):
    """What a particle takes along from step to step."""

    place: Array  # its index before the resampling of this step
    origin: Array  # its index when the block began
    previous: Array  # the new state of the step before
    log_into: Array  # log p(z_t | z_{t-1}) of the old z_t


class Seen(NamedTuple):
    """What proposals drew, and from what, (step, particle, ...)."""

    keys: Array  # under which they drew and score
    previous: Array
    following: Array
    origin: Array  # whose globals the particle has
    proposed: Array
    log_weights: Array  # incoming
    log_v: Array  # incremental


class Walk(NamedTuple):
    """A walk through all steps as an observer sees it."""

    seen: Seen
    shared: Any  # what the steps of a particle share, when the block began
    latents: Values  # by particle, after the last step
    log_weights: Array  # and their weights


def at_step(sequence: Sequence, t: int, latents: Values, initial: bool, has_globals: bool) -> StepConditional:
    """The conditional of one step inside a sequence, at the latents of one particle.

    Without `has_globals` the proposal is not shown the globals, as at a first draw before them; the model still is.
    """
    states, shared = latents[sequence.model.state], sequence.shared(latents)
    prepared = jax.tree.map(lambda leaf: leaf[t], sequence.prepared(shared if has_globals else None))
    data, exists = sequence.step_data(sequence.observed[t], prepared), jnp.ones((), bool)
    earlier = Neighbour(states[t - 2], exists & (t > 1)) if initial else None
    before, after = Neighbour(states[t - 1], exists, earlier), Neighbour(states[t + 1], exists & (not initial))
    return StepConditional(sequence.model, data, jnp.asarray(t), before, after, shared, initial, has_globals)


# The first draw ---------------------------------------------------------------------------------------------------------


def draw_first(key: PRNGKey, sequence: Sequence, kernel: Kernel, drawn: Values | None) -> tuple[Array, Array]:
    """The states of one particle, drawn one after another, and their log q. `drawn` holds the globals, if they exist."""
    at, inputs = _first_inputs(sequence, drawn)

    def step(last: tuple[Array, Array], inputs: tuple[Any, ...]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        conditional = at(*last, *inputs)
        values, log_q = kernel.draw(fold_in(key, conditional.t), conditional)
        previous = last[0]
        state = values[sequence.model.state].astype(previous.dtype)
        return (state, previous), (state, jnp.sum(log_q))

    blank = _blank_state(sequence)
    _, (states, log_q) = jax.lax.scan(step, (blank, blank), inputs)
    return states, jnp.sum(jnp.where(sequence.real, log_q, 0.0))


def score_first(key: PRNGKey, sequence: Sequence, kernel: Kernel, drawn: Values | None, states: Array) -> Array:
    """log q of the first draw, all steps at once."""
    at, inputs = _first_inputs(sequence, drawn)

    def one(previous: Array, earlier: Array, state: Array, *inputs: Any) -> Array:
        conditional = at(previous, earlier, *inputs)
        return jnp.sum(kernel.score(fold_in(key, conditional.t), conditional, {sequence.model.state: state}))

    # What the draw saw before its first step.
    blank = _blank_state(sequence)
    previous = shifted(states, 1).at[0].set(blank)
    earlier = shifted(previous, 1).at[0].set(blank)
    log_q = jax.vmap(one)(previous, earlier, states, *inputs)
    return jnp.sum(jnp.where(sequence.real, log_q, 0.0))


def _first_inputs(sequence: Sequence, drawn: Values | None) -> tuple[Callable[..., StepConditional], tuple[Any, ...]]:
    """The conditional of a step from its own inputs, and these inputs for all steps."""
    has_globals = drawn is not None
    shared = sequence.shared(drawn) if has_globals else None

    def at(previous: Array, earlier: Array, t: Array, observed: Array, prepared: Any) -> StepConditional:
        before = Neighbour(previous, t > 0, before=Neighbour(earlier, t > 1))
        after = Neighbour(previous, jnp.zeros((), bool))
        data = sequence.step_data(observed, prepared)
        return StepConditional(sequence.model, data, t, before, after, shared, True, has_globals)

    return at, (jnp.arange(sequence.num_steps), sequence.observed, sequence.prepared(shared))


def _blank_state(sequence: Sequence) -> Array:
    values = jax.eval_shape(lambda: draw(lambda: sequence.model(**sequence.data.values), jax.random.key(0)))
    states = values[sequence.model.state]
    return jnp.zeros(states.shape[1:], states.dtype)


# The sweep --------------------------------------------------------------------------------------------------------------


def walk(
    key: PRNGKey,
    sequence: Sequence,
    kernel: Kernel | None,
    move: Move,
    population: Population,
    resampler: Resampler,
    below: float,
) -> tuple[Population, Walk, Report]:
    """One update of all steps, each resampled and weighed by itself."""
    name, observed = sequence.model.state, sequence.model.observed
    particles, num_particles = population.particles, population.log_weights.shape[0]
    shared = jax.vmap(sequence.shared)(particles.latents)

    def step(population: Population, inputs: tuple[Moment, Given]) -> tuple[Population, Any]:
        moment, given = inputs
        key_resample, keys, keys_accept = block_keys(fold_in(key, moment.t), num_particles)
        # A padded step leaves everything as it is.
        population = population.resample(key_resample, resampler, jnp.where(moment.is_real, below, 0.0))
        walkers: Walker = population.particles
        given, common = jax.tree.map(lambda leaf: leaf[walkers.origin], (given, shared))

        def one(key_draw: PRNGKey, key_accept: PRNGKey, walker: Walker, given: Given, common: Any) -> Any:
            conditional = _inside(sequence, moment, walker.previous, given.following, common, given.prepared)
            factors = {name: walker.log_into, observed: given.log_observed, INTO_NEXT: given.log_into_next}
            return move(key_draw, key_accept, kernel, conditional, Particle({name: given.state}, factors))

        moved, log_v, info = jax.vmap(one)(keys, keys_accept, walkers, given, common)
        log_v, info_log_v = jnp.sum(log_v, axis=-1), jnp.sum(info.log_v, axis=-1)
        state = jnp.where(moment.is_real, moved.latents[name], given.state)
        seen = Seen(
            *(keys, walkers.previous, given.following, walkers.origin),
            *(info.proposed[name], population.log_weights, info_log_v),
        )
        onward = Walker(jnp.arange(num_particles), walkers.origin, state, moved.log_probs[INTO_NEXT])
        impossible = moment.is_real & population.loses_weight(log_v)
        population = population.weigh(onward, jnp.where(moment.is_real, log_v, 0.0))
        log_probs = {site: jnp.where(moment.is_real, moved.log_probs[site], 0.0) for site in (name, observed)}
        report = (ess(population.log_weights), jnp.mean(info.accepted), impossible)
        return population, ((walkers.place, (state, log_probs)), seen, report)

    moments = _moments(sequence)
    inputs = moments, _given(sequence, moments, particles, shared)
    first = particles.log_probs[name][:, 0]
    stay = jnp.arange(num_particles)
    start = _with(population, Walker(stay, stay, jnp.zeros_like(inputs[1].state[0]), first))
    walked, ((places, left), seen, reports) = jax.lax.scan(step, start, inputs)
    states, log_probs = _trajectories(places, left)
    others = jax.tree.map(lambda leaf: leaf[walked.particles.origin], particles)
    moved = Particle({**others.latents, name: states}, {**others.log_probs, **log_probs})
    event = Walk(seen, shared, moved.latents, walked.log_weights)
    size, acceptance = (jnp.sum(jnp.where(sequence.real, by_step, 0.0)) for by_step in reports[:2])
    num_real = jnp.sum(sequence.real)
    nothing_stale = jnp.zeros(len(particles.log_probs))  # a step accepts or rejects all of its factors together
    report = Report(size / num_real, acceptance / num_real, jnp.any(reports[2]), nothing_stale)
    return _with(walked, moved), event, report


def score_walk(sequence: Sequence, kernel: Kernel, event: Walk) -> Array:
    """log q of every proposed state, (step, particle), as a function of the proposal's arrays: all steps at once."""
    num_particles = event.log_weights.shape[0]
    prepared = _steps_first(jax.vmap(sequence.prepared, axis_size=num_particles)(event.shared))

    def one_step(moment: Moment, prepared: Any, seen: Seen) -> Array:
        def one(seen: Seen) -> Array:
            mine, common = jax.tree.map(lambda leaf: leaf[seen.origin], (prepared, event.shared))
            conditional = _inside(sequence, moment, seen.previous, seen.following, common, mine)
            return jnp.sum(kernel.score(seen.keys, conditional, {sequence.model.state: seen.proposed}))

        return jax.vmap(one)(seen)

    return jax.vmap(one_step)(_moments(sequence), prepared, event.seen)


def _inside(
    sequence: Sequence, moment: Moment, previous: Array, following: Array, shared: Any, prepared: Any
) -> StepConditional:
    before, after = Neighbour(previous, moment.t > 0), Neighbour(following, moment.next_is_real)
    data = sequence.step_data(moment.observed, prepared)
    return StepConditional(sequence.model, data, moment.t, before, after, shared)


def _moments(sequence: Sequence) -> Moment:
    next_is_real = jnp.append(sequence.real[1:], False)
    return Moment(jnp.arange(sequence.num_steps), sequence.observed, sequence.real, next_is_real)


def _given(sequence: Sequence, moments: Moment, particles: Particle, shared: Any) -> Given:
    """All steps, with the axes (step, particle, ...)."""
    name, observed = sequence.model.state, sequence.model.observed
    num_particles = particles.latents[name].shape[0]
    prepared = jax.vmap(sequence.prepared, axis_size=num_particles)(shared)
    states, log_states, log_observed, prepared = _steps_first(
        (particles.latents[name], particles.log_probs[name], particles.log_probs[observed], prepared)
    )
    log_into_next = jnp.where(moments.next_is_real[:, None], shifted(log_states, -1), 0.0)
    return Given(states, shifted(states, -1), log_observed, log_into_next, prepared)


def _steps_first(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), tree)


def block_keys(key: PRNGKey, num_particles: int) -> tuple[Array, Array, Array]:
    """To resample, to draw and to accept."""
    keys = jax.random.split(key, 1 + 2 * num_particles)
    return keys[0], keys[1 : 1 + num_particles], keys[1 + num_particles :]


def _with(population: Population, particles: Any) -> Population:
    return eqx.tree_at(lambda p: p.particles, population, particles)


def _trajectories(places: Array, left: Any) -> Any:
    """What each final particle left at every step, (particle, step, ...): backwards, by the ancestors of every step."""

    def back(where: Array, step: Any) -> tuple[Array, Any]:
        place, values = step
        return place[where], jax.tree.map(lambda leaf: leaf[where], values)

    last = jnp.arange(places.shape[1])
    return _steps_first(jax.lax.scan(back, last, (places, left), reverse=True)[1])
