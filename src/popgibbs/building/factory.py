"""The factory, which turns a model, blocks and an example instance into a checked sampler."""

import warnings
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Jaxpr

from popgibbs._typing import Resampler, Values
from popgibbs.building.automatic import check_sizes, completed, is_automatic
from popgibbs.building.block_rules import (
    candidate,
    check_cover,
    check_enumerable,
    check_models,
    check_one_integer,
    decide,
    finite_part,
)
from popgibbs.building.component_rules import components_of
from popgibbs.building.data_rules import (
    MIN_SIZE,
    check_plates,
    check_shared_arrays,
    check_signature,
    enlarged,
    fails_padded,
    sites_of,
)
from popgibbs.building.first_draws import component_draw, few_entries, has_components, is_direct, nested_draw
from popgibbs.building.fitted import fitted_to_factors, prepared
from popgibbs.building.lapack import calls_lapack, warn_of_waiting_calls
from popgibbs.building.probes import Findings, measure
from popgibbs.building.proposal_rules import (
    Sampled,
    check_exchangeable,
    check_first_draws,
    checked,
    first_partition,
    found_padding,
    is_weighed,
    raise_findings,
    updates_of,
)
from popgibbs.data import Axes, complete
from popgibbs.model import Exchangeable, Summed, Target, latent_names
from popgibbs.moves import Metropolis
from popgibbs.smc import Block, Bridge, BuiltSampler, Plan


def build(
    model: Any,
    blocks: tuple[Block, ...] | None,
    axes: Axes,
    example: Values,
    resampler: Resampler,
    ess_threshold: float,
    first: BuiltSampler | None = None,
    bridge: Bridge | None = None,
    exchangeable: Sequence[Exchangeable] | None = None,
    *,
    learned: bool = False,
) -> BuiltSampler:
    """Check a model, its blocks and an example instance against each other, and plan the updates of each block.

    Rules come first, in the order in which a user would look for a mistake: arguments, data, model, blocks, proposals.
    Measurements on the example follow, and then the plans.
    """
    if not 0.0 <= ess_threshold <= 1.0:
        raise ValueError(f"ess_threshold={ess_threshold} is a fraction of the particles; choose it between 0 and 1")
    check_shared_arrays(model, (*(blocks or ()), *(first.blocks if first else ())))
    check_signature(model, example)
    is_small = min(complete(example, axes).sizes, default=MIN_SIZE) < MIN_SIZE
    example, cannot_pad = enlarged(model, example, axes)
    example = {name: jnp.asarray(value) for name, value in example.items()}  # as models see them
    sites = sites_of(model, example)
    target = Target(model, complete(example, axes), sites)
    cannot_pad = cannot_pad or check_plates(target, axes) or fails_padded(target, axes)
    proposed = completed(blocks, target, learned=learned)
    check_cover(sites, proposed)
    check_models(proposed, target)
    chooses_first = bridge is None and first is None and is_automatic(blocks)
    if chooses_first and (has_components(proposed) or not (learned or is_direct(proposed, target))):
        bridge = Bridge(100) if has_components(proposed) else Bridge()  # components have to find their modes on the way
    components = components_of(exchangeable, target)
    summed_out = {i: part for i, block in enumerate(proposed) if (part := finite_part(block, sites))}
    judged = (*proposed, *summed_out.values())
    candidates = tuple(candidate(block, target) for block in judged)
    proposed = fitted_to_factors(proposed, blocks, target, candidates)
    ready = prepared(proposed, target, candidates)
    judged = (*ready, *summed_out.values())
    first_draws = {} if bridge else _first_draws(ready, target, first)
    updates = updates_of(ready, target)
    draws = [*first_draws, *checked(updates, ready, target)]
    weighed = [draw for draw in updates if is_weighed(ready[draw.block])]

    def before_running(jaxpr: Jaxpr) -> None:  # which could already hang
        if calls_lapack(jaxpr):
            warn_of_waiting_calls(target, ready, draws)

    findings = measure(
        target, judged, candidates, draws, weighed, axes, can_pad=cannot_pad is None, traced=before_running
    )
    raise_findings(findings, ready)

    partitions = [decide(i, block, candidates[i], findings) for i, block in enumerate(judged)]
    for block, partition in zip(judged, partitions, strict=True):
        check_enumerable(block, partition, target)
        check_one_integer(block, partition, target)
        check_sizes(block, partition, target)
    summed = {
        i: Summed(part.sites, partition)
        for (i, part), partition in zip(summed_out.items(), partitions[len(ready) :], strict=True)
    }
    if partitions != list(candidates):
        ready = prepared(proposed, target, partitions)
    plans = [
        Plan(
            partition=partitions[i],
            first_partition=first_partition(i, partitions[i], first_draws, target),
            summed=summed.get(i),
            proved=findings.proved.get(i, True),
        )
        for i in range(len(ready))
    ]
    bridge_below = None
    if chooses_first and bridge is not None:
        if first := component_draw(ready, plans, components, target):
            bridge_below = few_entries(first, target)
            bridge = Bridge(50) if bridge_below else None
        elif first := nested_draw(ready, target):
            bridge = None
    return BuiltSampler(
        model=model,
        blocks=_with_moves(ready, findings),
        first=None if first is None else first.without_model(),
        sites=sites,
        plans=tuple(plans),
        resampler=resampler,
        ess_threshold=ess_threshold,
        small_example=is_small,
        bridge=bridge,
        bridge_below=bridge_below,
        exchangeable=components,
        cannot_pad=cannot_pad or found_padding(findings, ready) or (first.cannot_pad if first else None),
    )


def _first_draws(blocks: tuple[Block, ...], target: Target, first: BuiltSampler | None) -> Sampled:
    """The first draws to be checked; those of another sampler were checked when it was built."""
    if first is None:
        draws = check_first_draws(blocks, target)
        check_exchangeable(blocks, target)
        return draws
    if (theirs := set(latent_names(first.sites))) != (ours := set(latent_names(target.sites))):
        raise ValueError(f"`initial=` draws the sites {sorted(theirs)}, but the model has {sorted(ours)}")
    return {}


def _with_moves(blocks: tuple[Block, ...], findings: Findings) -> tuple[Block, ...]:
    """The blocks with their moves: `Reweight` by default, but `Metropolis` if a weight can be zero, which is biased."""
    biased = {draw.block for draw, possible in findings.never_impossible.items() if not possible}
    resolved = []
    for index, block in enumerate(blocks):
        if index in biased:
            described = (
                f"block '{block.name}': its proposal can draw values of probability zero under the model, or cannot "
                "draw some that the model can; Reweight() is biased there"
            )
            way_out = "its move is Metropolis() instead" if block.chosen is None else "use move=Metropolis()"
            warnings.warn(f"{described}, so {way_out}", stacklevel=4)
        safe = index in biased and block.chosen is None
        resolved.append(block.with_move(Metropolis()) if safe else block)
    return tuple(resolved)
