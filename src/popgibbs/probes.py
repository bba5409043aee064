"""Properties of a model and its proposals that are measured when a sampler is built, not trusted.

Everything is measured by one compiled call on one example instance: whether plate elements are independent (one is
changed, the others must stay), whether padding changes a number, whether supports agree.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from popgibbs import program
from popgibbs.blocks import Block
from popgibbs.elements import Partition
from popgibbs.instances import Axes, Data, pad, plates
from popgibbs.program import Site
from popgibbs.proposals import Programmed
from popgibbs.sequences import at_step
from popgibbs.steps import AnyConditional, Sequence
from popgibbs.target import Conditional, Target, by_name, condition, undrawn
from popgibbs.typing import PRNGKey, Values

_NUM_PROBES = 32
_NUM_DRAWS = 32


class Draw(NamedTuple):
    """A proposal to be judged: of which block, for which sites, at the first step or later."""

    block: int
    names: tuple[str, ...]
    given: tuple[str, ...]
    initial: bool
    step: int | None = None  # of a sequence, which stands for all of them

    def conditional(self, target: Target, block: Block, latents: Values) -> AnyConditional:
        """What the proposal draws for, at the latents that exist then."""
        given = {name: latents[name] for name in self.given}
        if self.step is None:
            return Conditional(target, given, self.names, Partition(target.sites), self.initial)
        has_globals = not undrawn(target.sites, (*self.given, *self.names))
        sequence = Sequence(target.model, target.data, block.proposal)
        return at_step(sequence, self.step, {**given, **self._all(latents)}, self.initial, has_globals)

    def own(self, latents: Values) -> Values:
        """The values of the sites that are drawn."""
        own = self._all(latents)
        return own if self.step is None else {name: value[self.step] for name, value in own.items()}

    def _all(self, latents: Values) -> Values:
        return {name: latents[name] for name in self.names}


class Findings(NamedTuple):
    """What was measured; every entry is true where all is well."""

    padding_of_sites: dict[str, bool]  # by site of the model
    padding_of_proposals: dict[Draw, bool]
    independent: dict[int, dict[str, bool]]  # by block and factor
    proposal_splits: dict[int, bool]  # by block
    inside_model: dict[Draw, dict[str, bool]]  # draws of the proposal lie in the model's support
    inside_proposal: dict[Draw, dict[str, bool]]  # and the other way round


def measure(
    target: Target, blocks: tuple[Block, ...], partitions: tuple[Partition, ...], draws: list[Draw], axes: Axes
) -> Findings:
    """All measurements for the proposed partitions, in one compiled call."""
    sizes, declared = target.plate_sizes, plates(axes)
    padded = {plate: size + (plate in declared) for plate, size in sizes.items()}
    longer = pad(jax.tree.map(np.asarray, target.data.values), axes, padded)
    mask = {plate: jnp.arange(padded[plate]) < sizes[plate] for plate in declared}

    arrays, static = eqx.partition((target, blocks), eqx.is_array)

    def measured(arrays: Any, larger: Data, key: PRNGKey) -> tuple[Any, ...]:
        target, blocks = eqx.combine(arrays, static)
        keys = jax.random.split(key, _NUM_DRAWS)
        many = jax.vmap(lambda key: program.draw(target.program, key))(keys)
        latents, other = jax.tree.map(lambda leaf: leaf[0], many), jax.tree.map(lambda leaf: leaf[1], many)
        big = Target(target.model, larger, target.sites)
        big_latents = _pad_latents(latents, target.sites, padded)
        conditionals = {
            index: condition(target, latents, block.sites, partitions[index])
            for index, block in enumerate(blocks)
            if not partitions[index].whole
        }
        return (
            _same(target.log_probs(latents), big.log_probs(big_latents)),
            [_proposal_keeps(blocks[draw.block], draw, key, (target, latents), (big, big_latents)) for draw in draws],
            {i: _independent(conditional, latents, other) for i, conditional in conditionals.items()},
            {i: _splits(blocks[i], conditional, key, latents, other) for i, conditional in conditionals.items()},
            [_supports(target, blocks[draw.block], draw, many, keys) for draw in draws],
        )

    # It runs once, so compiling fast matters more than running fast. The key is fixed: the same sampler always passes or
    # always fails.
    compiled = jax.jit(measured, compiler_options={"xla_backend_optimization_level": 0})
    sites, proposals, independent, splits, supports = jax.device_get(
        compiled(arrays, Data(longer, mask), jax.random.key(20))
    )
    return Findings(
        padding_of_sites=sites,
        padding_of_proposals=dict(zip(draws, proposals, strict=True)),
        independent=independent,
        proposal_splits=splits,
        inside_model={draw: found[0] for draw, found in zip(draws, supports, strict=True)},
        inside_proposal={draw: found[1] for draw, found in zip(draws, supports, strict=True)},
    )


def _pad_latents(latents: Values, sites: tuple[Site, ...], padded: Mapping[str, int]) -> Values:
    named = by_name(sites)
    longer = {}
    for name, value in latents.items():
        for plate, axis in named[name].plates:
            place = value.ndim - named[name].event_dim + axis
            widths = [(0, padded[plate] - value.shape[place] if i == place else 0) for i in range(value.ndim)]
            value = jnp.pad(value, widths, mode="edge")
        longer[name] = value
    return longer


def _same(before: Values, after: Values) -> dict[str, jax.Array]:
    """Whether factors agree, element by element: sums of many small terms round differently."""

    def agree(old: jax.Array, new: jax.Array) -> jax.Array:
        real = tuple(slice(0, size) for size in old.shape)
        return jnp.all(_close(old, new[real])) & _close(jnp.sum(new[real]), jnp.sum(new))

    return {name: agree(before[name], after[name]) for name in before}


def _close(a: jax.Array, b: jax.Array, terms: int = 1) -> jax.Array:
    return jnp.isclose(a, b, rtol=1e-4, atol=1e-4 * terms, equal_nan=True)


def _proposal_keeps(
    block: Block, draw: Draw, key: PRNGKey, small: tuple[Target, Values], large: tuple[Target, Values]
) -> jax.Array:
    def log_q(target: Target, latents: Values) -> jax.Array:
        return jnp.sum(block.kernel.score(key, draw.conditional(target, block, latents), draw.own(latents)))

    terms = max(np.size(value) for value in draw.own(small[1]).values())
    return _close(log_q(*small), log_q(*large), terms)


def _elementwise(
    elements: Callable[[Values], jax.Array], conditional: Conditional, latents: Values, other: Values
) -> jax.Array:
    """Whether changing one element of the block changes only that entry of `elements`."""
    sizes = conditional.target.plate_sizes
    old = {name: latents[name] for name in conditional.names}
    places = jnp.arange(conditional.real.shape[0])
    probed = np.unique(np.linspace(0, len(places) - 1, _NUM_PROBES).astype(int))

    def with_other(element: jax.Array) -> jax.Array:
        here = places == element
        mixed = {
            name: jnp.where(conditional.partition.spread_values(here, name, sizes), other[name], old[name])
            for name in conditional.names
        }
        return elements(mixed)

    # One after another through the same code, the unchanged state first (no element has the number -1): elements that do
    # not depend on the changed one then come out the same to the last bit, however large the numbers that cancel in them.
    before, *after = jax.lax.map(with_other, jnp.asarray([-1, *probed]))
    stays = [jnp.all(_close(row, before) | (places == element)) for row, element in zip(after, probed, strict=True)]
    return jnp.all(jnp.stack(stays))


def _independent(conditional: Conditional, latents: Values, other: Values) -> dict[str, jax.Array]:
    def of_factor(name: str) -> jax.Array:
        def elements(values: Values) -> jax.Array:
            return conditional.reduce({name: conditional.log_probs(values)[name]})

        return _elementwise(elements, conditional, latents, other)

    return {name: of_factor(name) for name in conditional.factors}


def _splits(block: Block, conditional: Conditional, key: PRNGKey, latents: Values, other: Values) -> Any:
    if not isinstance(block.kernel, Programmed):
        return True
    _, log_q = program.evaluate(conditional.bind(block.proposal), key, conditional.given)
    _, log_p = program.evaluate(conditional.target.program, key, latents)
    if any(jnp.shape(log_q[name]) != jnp.shape(log_p[name]) for name in block.sites):
        return False
    return _elementwise(lambda values: block.kernel.score(key, conditional, values), conditional, latents, other)


def _supports(target: Target, block: Block, draw: Draw, many: Values, keys: jax.Array) -> tuple[Any, Any]:
    """Whether draws of the proposal lie in the model's support, and draws of the model in the proposal's."""

    def inside(judge: program.Program, given: Values, drawn: Values) -> dict[str, jax.Array]:
        sites = program.raw_sites(judge, keys[0], {**given, **drawn})
        return {name: jnp.all(sites[name]["fn"].support(drawn[name])) for name in draw.names}

    def one(key: PRNGKey, latents: Values) -> tuple[Any, Any]:
        conditional = draw.conditional(target, block, latents)
        bound, given = conditional.bind(block.proposal), conditional.given
        values, _ = program.evaluate(bound, key, given)
        drawn = {name: values[name] for name in draw.names}
        return inside(conditional.modelled, given, drawn), inside(bound, given, draw.own(latents))

    return jax.tree.map(jnp.all, jax.vmap(one)(keys, many))
