"""Kernels that are fitted to the model when a sampler is built: exact ones, and networks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
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
from popgibbs.proposals import is_exact, shape_of
from popgibbs.smc import Block, initial_plan

_NUM_DRAWS = 64  # from the model, at which the scales of a network's inputs are measured
_NUM_STATES = 4  # at which factors are looked at for their form


def fitted_to_factors(
    blocks: tuple[Block, ...], given: tuple[Block, ...] | None, target: Target, partitions: Sequence[Partition]
) -> tuple[Block, ...]:
    """The blocks of one site with kernels that fit the model's factors, for blocks that leave the choice to the sampler.

    Updates are exact where the factors are conjugate; modes are searched for where Newton's method misses them.
    """
    sites, chosen = by_name(target.sites), list[int]()
    for index, block in enumerate(blocks):
        is_continuous = len(block.sites) == 1 and not sites[block.sites[0]].discrete
        if block.learns and is_continuous and (given is None or given[index].is_automatic):
            chosen.append(index)
    if not chosen:
        return blocks
    families = {index: sites[blocks[index].sites[0]].family for index in chosen}

    def one(key: PRNGKey, from_example: Array) -> Any:
        arrays, latents = drawn_instance(target, key)
        arrays = {name: jnp.where(from_example, target.data.values[name], array) for name, array in arrays.items()}
        here = replace(target, data=replace(target.data, values=arrays))
        exact, shapes = {}, {}
        for index in chosen:
            conditional = condition(here, latents, blocks[index].sites, partitions[index])
            if (family := families[index]) is not None:
                # Data far from these latents make gradients so large that rounding hides their form.
                exact[index] = is_exact(family, key, conditional) | from_example
            shapes[index] = shape_of(conditional)
        return exact, shapes

    keys = jax.random.split(key_for_checks(31), 2 * _NUM_STATES)
    from_example = jnp.arange(2 * _NUM_STATES) >= _NUM_STATES
    exact, shapes = jax.device_get(jit_once(jax.vmap(one))(keys, from_example))

    def fitted(index: int, block: Block) -> Block:
        if index not in shapes:
            return block
        several, misjudged = (found.any() for found in shapes[index])
        if index in exact and exact[index].all() and not several:
            return block.changed(kernel=block.kernel.made_exact(families[index]))
        return block.changed(kernel=block.kernel.with_search()) if several or misjudged else block

    return tuple(fitted(index, block) for index, block in enumerate(blocks))


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
