"""Properties of a model and its proposals that are proved or measured when a sampler is built, not trusted.

Independence of plate elements is proved from the program where possible. Everything else is measured by one compiled call
on one example instance: independence where there is no proof (one element is changed, the others must stay), whether
padding changes a number, whether supports agree, whether proposals reach states of density zero.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr

from popgibbs._compiling import Program, jit_once
from popgibbs._random import key_for_checks
from popgibbs._typing import PRNGKey, Values
from popgibbs.building.lanes import lanes
from popgibbs.data import Axes, Data, lengthen, pad, plates
from popgibbs.model import BlockConditional, Conditional, Partition, Site, Target, by_name, condition, program, total
from popgibbs.proposals import BoundKernel, key_for
from popgibbs.smc import Block

_PROPOSAL = ""  # stands for a block's proposal among its factors; no site has this name
_NUM_PROBES = 32  # elements that are changed
_NUM_DRAWS = 32  # states that are drawn from the model
_NUM_STATES = 8  # of these, the number at which elements are changed


class Draw(NamedTuple):
    """A proposal to be checked: its block, its sites, the sites it is given, and whether it is a first draw."""

    block: int
    names: tuple[str, ...]
    given: tuple[str, ...]
    initial: bool

    def conditional(self, target: Target, block: Block, latents: Values) -> Conditional:
        """The conditional of the proposal, given the latents that exist when it draws."""
        return block.probed_conditional(target, self.names, self.given, latents, initial=self.initial)

    def own(self, block: Block, latents: Values) -> Values:
        """The values of the proposal's own sites."""
        return {name: block.probed(latents[name]) for name in self.names}


class Findings(NamedTuple):
    """The results of all measurements; true means that there is no problem."""

    padding_of_sites: dict[str, bool]  # by site of the model
    padding_of_proposals: dict[Draw, bool]
    independent: dict[int, dict[str, bool]]  # by block and factor
    proved: dict[int, bool]  # by block: independent by the program itself, not by probing alone
    proposal_splits: dict[int, bool]  # by block
    inside_model: dict[Draw, dict[str, bool]]  # draws of the proposal are in the model's support
    inside_proposal: dict[Draw, dict[str, bool]]  # draws of the model are in the proposal's support
    never_impossible: dict[Draw, bool]  # an update's draw has positive density, and so has the way back


def measure(
    target: Target,
    blocks: tuple[Block, ...],
    partitions: tuple[Partition, ...],
    draws: list[Draw],
    weighed: list[Draw],
    axes: Axes,
    *,
    can_pad: bool,
    traced: Callable[[Jaxpr], None] = lambda jaxpr: None,
) -> Findings:
    """All measurements for candidate partitions, in one compiled call; `weighed` are the updates that are weighed.

    `traced` is called with the program before it runs.
    """
    sizes = target.plate_sizes
    longer = padded_by_one(target, axes) if can_pad else target.data
    padded = {plate: size + (plate in longer.mask) * can_pad for plate, size in sizes.items()}

    probed_draws = list(dict.fromkeys([*draws, *weighed]))
    # The key is fixed, so the same sampler always passes or always fails.
    inputs = (target, blocks, partitions, probed_draws, longer, padded, key_for_checks(20))
    traced(_measured.trace(*inputs).jaxpr.jaxpr)
    sites, probed, reached = jax.device_get(_measured(*inputs))
    reached = dict(zip(probed_draws, reached, strict=True))
    return Findings(
        padding_of_sites=sites,
        padding_of_proposals={draw: reached[draw].padding for draw in draws},
        independent={i: found[0] for i, found in probed.items()},
        proved={i: bool(found[1]) for i, found in probed.items()},
        proposal_splits={i: found[2] for i, found in probed.items()},
        inside_model={draw: reached[draw].inside_model for draw in draws},
        inside_proposal={draw: reached[draw].inside_proposal for draw in draws},
        never_impossible={draw: reached[draw].possible for draw in weighed},
    )


def _measure(
    target: Target,
    blocks: tuple[Block, ...],
    partitions: tuple[Partition, ...],
    draws: list[Draw],
    larger: Data,
    padded: dict[str, int],
    key: PRNGKey,
) -> tuple[dict[str, Any], dict[int, Any], list["_Reached"]]:
    """For every site, whether padding keeps it; for every block that may split, `_probe_elements`; `_reach` of draws."""
    # Separate keys: under the key of a state, a proposal would repeat the random numbers behind that state.
    key_states, key = jax.random.split(key)
    many = jax.vmap(lambda key: program.draw(target.program, key))(jax.random.split(key_states, _NUM_DRAWS))
    keys = jax.random.split(key, _NUM_DRAWS)
    log_probs = jax.vmap(target.log_probs)(many)
    dead = jax.vmap(total)(log_probs) == -jnp.inf
    first = jax.tree.map(lambda leaf: leaf[0], many)
    big = Target(target.model, larger, target.sites)
    big_first = _pad_latents(first, target.sites, padded)

    def reach(draw: Draw) -> _Reached:
        block = blocks[draw.block]
        found = jax.vmap(partial(_reach, target, block, draw))(keys, many, dead)
        log_q = jnp.sum(_bound(block, keys[0], draw.conditional(big, block, big_first)).score(draw.own(block, big_first)))
        terms = max(np.size(value) for value in draw.own(block, first).values())
        padding = _close(found.padding[0], log_q, terms)
        return jax.tree.map(jnp.all, found._replace(padding=padding))

    return (
        _same(jax.tree.map(lambda leaf: leaf[0], log_probs), big.log_probs(big_first)),
        {
            index: _probe_elements(target, blocks[index], partition, key, many)
            for index, partition in enumerate(partitions)
            if not partition.whole
        },
        [reach(draw) for draw in draws],
    )


_measured = Program(_measure, jit_once)  # one program for samplers that differ in numbers only


def padded_by_one(target: Target, axes: Axes) -> Data:
    """The example padded by one element in every declared plate."""
    sizes, declared = target.plate_sizes, plates(axes)
    padded = {plate: size + (plate in declared) for plate, size in sizes.items()}
    longer = pad(jax.tree.map(np.asarray, target.data.values), axes, padded)
    return Data(longer, {plate: jnp.arange(padded[plate]) < sizes[plate] for plate in declared})


def _pad_latents(latents: Values, sites: tuple[Site, ...], padded: Mapping[str, int]) -> Values:
    named = by_name(sites)
    longer = {}
    for name, value in latents.items():
        for plate, axis in named[name].plates:
            value = lengthen(value, axis - named[name].event_dim, padded[plate])
        longer[name] = value
    return longer


def _same(before: Values, after: Values) -> dict[str, jax.Array]:
    """Whether factors agree, element by element because sums of many terms round differently."""

    def agree(old: jax.Array, new: jax.Array) -> jax.Array:
        real = tuple(slice(0, size) for size in old.shape)
        return jnp.all(_close(old, new[real])) & _close(jnp.sum(new[real]), jnp.sum(new))

    return {name: agree(before[name], after[name]) for name in before}


def _close(a: jax.Array, b: jax.Array, terms: int = 1) -> jax.Array:
    return jnp.isclose(a, b, rtol=1e-4, atol=1e-4 * terms, equal_nan=True)


# Elements ---------------------------------------------------------------------------------------------------------------


def _probe_elements(
    target: Target, block: Block, partition: Partition, key: PRNGKey, many: Values
) -> tuple[dict[str, Any], bool, Any]:
    """Whether each of the block's factors splits into elements, whether all do by proof, whether its proposal does."""
    first = condition(target, jax.tree.map(lambda leaf: leaf[0], many), block.updated, partition)
    own = {name: many[name][0] for name in block.updated}
    with_proof = proved(first, first.log_probs, own)
    unproved = [name for name in first.factors if name not in with_proof]
    splits, by_proof = _proposal_splits(block, key, first, own)
    if not unproved and by_proof:
        return {name: jnp.ones((), bool) for name in first.factors}, True, splits
    states, others = _states(target, block, partition, key, many)

    def elements(conditional: BlockConditional, values: Values) -> Values:
        """By factor without a proof, its elements; and those of the proposal, if it has none."""
        found = {}
        if unproved:
            log_probs = conditional.log_probs(values)
            found |= {name: conditional.reduce({name: log_probs[name]}) for name in unproved}
        if splits and not by_proof:
            found[_PROPOSAL] = _bound(block, key, conditional).score(values)
        return found

    def at_state(state: tuple[Values, Values]) -> dict[str, jax.Array]:
        return _elementwise(elements, condition(target, state[0], block.updated, partition), *state)

    held = jax.tree.map(jnp.all, jax.lax.map(at_state, (states, others)))
    factors = {name: held.get(name, jnp.ones((), bool)) for name in first.factors}
    return factors, not unproved, held.get(_PROPOSAL, splits)


def _proposal_splits(block: Block, key: PRNGKey, conditional: BlockConditional, own: Values) -> tuple[bool, bool]:
    """Whether a proposal can split into elements, and whether it does by proof."""
    if block.kernel.from_model:
        return True, True

    def log_q(values: Values) -> Values:
        return _bound(block, key, conditional).log_probs(values) or {}

    shapes = jax.eval_shape(lambda: (log_q(own), conditional.log_probs(own)))
    if any(shapes[0][name].shape != shapes[1][name].shape for name in shapes[0]):
        return False, True
    return True, bool(shapes[0]) and proved(conditional, log_q, own) == set(block.sites)


def _bound(block: Block, key: PRNGKey, conditional: Conditional) -> BoundKernel:
    return block.kernel.bind(key_for(block.kernel, key), conditional)


def proved(conditional: BlockConditional, log_probs: Callable[[Values], Values], own: Values) -> set[str]:
    """The sites whose log-probabilities provably depend, at each element, on that element alone."""
    partition, sites = conditional.partition, by_name(conditional.target.sites)
    shapes = jax.eval_shape(log_probs, own)
    # Nothing is proved under `assigned_by`: the component of an entry depends on the value of the assignment.
    proved = {name for name in shapes if partition.assigned_by is None}
    for plate in partition.plates:
        axes = {name: _axis(sites[name], plate, value) for name, value in own.items()}
        found = lanes(log_probs, own, axes)
        proved = {name for name in proved if found[name].is_at(_plate_axis(sites[name], plate), shapes[name].ndim)}
    return proved


def _plate_axis(site: Site, plate: str) -> int:
    axis = site.axis(plate)
    assert axis is not None
    return axis


def _axis(site: Site, plate: str, value: jax.Array) -> int:
    """The axis of a plate in a site's value."""
    return value.ndim - site.event_dim + _plate_axis(site, plate)


def _states(
    target: Target, block: Block, partition: Partition, key: PRNGKey, many: Values
) -> tuple[Values, dict[str, jax.Array]]:
    """States at which elements are changed, stacked, and the values to which they are changed.

    There are independent draws of the model; elements that take the value of their neighbour, because some dependences
    show only where elements coincide; and further draws of the proposal at states that it reaches.
    """
    states = jax.tree.map(lambda leaf: leaf[:_NUM_STATES], many)
    own = {name: states[name] for name in block.updated}
    drawn = {name: many[name][_NUM_STATES : 2 * _NUM_STATES] for name in block.updated}
    sites = by_name(target.sites)

    def neighbours(name: str) -> jax.Array:
        value = own[name]
        for plate in partition.plates:
            value = jnp.roll(value, 1, axis=1 + _axis(sites[name], plate, value[0]))
        return value

    pairs = [(states, drawn), (states, {name: neighbours(name) for name in block.updated})]
    if block.proposes and not block.kernel.needs_finite:

        def propose(key: PRNGKey, latents: Values) -> Values:
            return _bound(block, key, condition(target, latents, block.sites, Partition(target.sites))).draw()[0]

        keys = jax.random.split(key, (2, _NUM_STATES))
        reached, further = (jax.vmap(propose)(row, states) for row in keys)
        pairs.append(({**states, **reached}, {**drawn, **further}))
    cast = [(base, {name: other[name].astype(own[name].dtype) for name in own}) for base, other in pairs]
    return jax.tree.map(lambda *leaves: jnp.concatenate([leaf.astype(leaves[0].dtype) for leaf in leaves]), *cast)


def _elementwise(
    elements: Callable[[BlockConditional, Values], Values],
    conditional: BlockConditional,
    latents: Values,
    other: Values,
) -> dict[str, jax.Array]:
    """For each of `elements`, whether changing one element of the block changes only that entry."""
    sizes = conditional.target.plate_sizes
    old = {name: latents[name] for name in conditional.names}
    places = jnp.arange(conditional.real.shape[0])
    probed = np.unique(np.linspace(0, len(places) - 1, _NUM_PROBES).astype(int))

    def with_other(element: jax.Array) -> Values:
        here = places == element
        mixed = {
            name: jnp.where(conditional.partition.spread_values(here, name, sizes), other[name], old[name])
            for name in conditional.names
        }
        return elements(conditional, mixed)

    # All states run one after another through the same code, the unchanged one first (no element has the number -1).
    # Elements that do not depend on the changed one are then equal to the last bit, even if large terms cancel in them.
    found = jax.lax.map(with_other, jnp.asarray([-1, *probed]))
    changed = places == probed[:, None]
    return {name: jnp.all(_close(rows[1:], rows[:1]) | changed) for name, rows in found.items()}


# Supports ---------------------------------------------------------------------------------------------------------------


class _Reached(NamedTuple):
    """Where draws of a proposal and of the model lie, at one state or at all."""

    inside_model: dict[str, Any]  # by site: draws of the proposal are in the model's support
    inside_proposal: dict[str, Any]  # by site: draws of the model are in the proposal's support
    possible: Any  # draws of the proposal have positive density, and so has the way back
    padding: Any  # at one state, log q of the model's draw; over all, whether padding keeps it


def _reach(target: Target, block: Block, draw: Draw, key: PRNGKey, latents: Values, dead: jax.Array) -> _Reached:
    """Whether the supports of a proposal and of the model agree, and whether weights are positive, at one state.

    A proposal need not reach states to which other factors of the model give probability zero.
    """
    conditional = draw.conditional(target, block, latents)
    bound = _bound(block, key, conditional)
    drawn, _ = bound.draw()
    own = draw.own(block, latents)
    modelled = program.raw_sites(conditional.modelled, key, {**conditional.given, **drawn})
    inside = {name: jnp.all(modelled[name]["fn"].support(drawn[name])) for name in draw.names}
    covered = {name: held | dead for name, held in bound.covers(own).items()}
    forward = jnp.sum(conditional.reduce(conditional.log_probs(drawn)))
    backward = jnp.sum(bound.score(own))
    return _Reached(inside, covered, dead | ((forward != -jnp.inf) & (backward != -jnp.inf)), backward)
