"""Kernels that are fitted to the model when a sampler is built: exact ones, and networks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
from jaxtyping import Array

from popgibbs._compiling import initialised, jit_once
from popgibbs._random import key_for_checks
from popgibbs._typing import PRNGKey, Values
from popgibbs.building.first_draws import has_components
from popgibbs.model import (
    BlockConditional,
    Partition,
    Target,
    by_name,
    condition,
    draw,
    simulate,
    simulates,
)
from popgibbs.proposals import is_exact
from popgibbs.smc import Block, initial_plan

_NUM_DRAWS = 64  # from the model, at which the scales of a network's inputs are measured
_NUM_STATES = 4  # at which factors are looked at for their form


def exact_where_possible(
    blocks: tuple[Block, ...], given: tuple[Block, ...] | None, target: Target, partitions: Sequence[Partition]
) -> tuple[Block, ...]:
    """The blocks with exact updates where the model's factors are conjugate, for blocks that leave the choice to it."""
    sites, families = by_name(target.sites), dict[int, str]()
    for index, block in enumerate(blocks):
        family = sites[block.sites[0]].family if len(block.sites) == 1 else None
        if block.learns and family is not None and (given is None or given[index].is_automatic):
            families[index] = family
    chosen = tuple(families)
    if not chosen:
        return blocks

    def one(key: PRNGKey) -> list[Array]:
        arrays, latents = drawn_instance(target, key)
        here = replace(target, data=replace(target.data, values=arrays))
        conditionals = [condition(here, latents, blocks[index].sites, partitions[index]) for index in chosen]
        return [is_exact(families[index], key, each) for index, each in zip(chosen, conditionals, strict=True)]

    found = jax.device_get(jit_once(jax.vmap(one))(jax.random.split(key_for_checks(31), _NUM_STATES)))
    exact = {index: families[index] for index, agrees in zip(chosen, found, strict=True) if agrees.all()}
    return tuple(
        block.changed(kernel=block.kernel.made_exact(exact[index])) if index in exact else block
        for index, block in enumerate(blocks)
    )


def prepared(blocks: tuple[Block, ...], target: Target, partitions: Sequence[Partition]) -> tuple[Block, ...]:
    """The blocks with networks that fit the model, for kernels that have any."""
    learned = [i for i, block in enumerate(blocks) if block.kernel is not None and block.kernel.is_learned]
    if not learned:
        return blocks
    # Networks do not make the first draw of components.
    first, drawn_before, drawn = {} if has_components(blocks) else dict(initial_plan(blocks)), {}, ()
    for index in range(len(blocks)):
        drawn_before[index] = drawn
        drawn += first.get(index, ())
    facts: dict[tuple[int, bool], Any] = {}

    def one(key: PRNGKey) -> Any:
        arrays, latents = drawn_instance(target, key)
        here, found = replace(target, data=replace(target.data, values=arrays)), {}
        for index in learned:
            block, partition = blocks[index], partitions[index]
            conditionals = {False: condition(here, latents, block.sites, partition)}
            if names := first.get(index):
                given = {name: latents[name] for name in drawn_before[index]}
                conditionals[True] = BlockConditional(here, partition, names=names, given=given, initial=True)
            for initial, conditional in conditionals.items():
                found[index, initial], facts[index, initial] = block.kernel.inputs(conditional)
        return found

    samples = jax.device_get(jit_once(jax.vmap(one))(jax.random.split(jax.random.key(0), _NUM_DRAWS)))

    def complete(index: int, block: Block) -> Block:
        inputs = [(samples[at], facts[at]) if (at := (index, initial)) in facts else None for initial in (False, True)]
        return block.changed(kernel=initialised(lambda key: block.kernel.prepared(key, *inputs), jax.random.key(index)))

    return tuple(complete(i, block) if i in learned else block for i, block in enumerate(blocks))


def drawn_instance(target: Target, key: PRNGKey) -> tuple[Values, Values]:
    """An instance and its latents from the model, or the example with latents from the prior if it cannot be drawn."""
    try:
        simulates(target.model, target.data.values)
    except ValueError:
        return target.data.values, draw(target.program, key)
    return simulate(target.model, target.data.values, key)
