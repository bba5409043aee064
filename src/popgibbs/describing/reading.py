"""Reading a description from a checked sampler."""

import re
from math import prod
from typing import Any

import equinox as eqx
import jax
import numpy as np

from popgibbs._typing import Values
from popgibbs.data import Axes, complete
from popgibbs.describing.description import BlockRow, Description, Seen, SiteRow
from popgibbs.model import Site, StateSpaceModel, Target, by_name, family, raw_sites, touched
from popgibbs.smc import Block, BuiltSampler, Plan, initial_plan

_MOST_VALUES = 4  # of a finite site that are written out


def describe(sampler: BuiltSampler, example: Values, axes: Axes) -> Description:
    """What a sampler is made of, with the sizes of an example instance."""
    target = sampler.target(complete(example, axes))
    raw = raw_sites(target.program, jax.random.key(0))
    blocks = zip(sampler.blocks, sampler.plans, strict=True)
    return Description(
        model=getattr(sampler.model, "__name__", type(sampler.model).__name__),
        plates=target.plate_sizes,
        sites=tuple(_site(site, raw[site.name], sampler) for site in sampler.sites),
        blocks=tuple(_block(block, plan, target, raw) for block, plan in blocks),
        first_draw=_first_draw(sampler),
        num_model_parameters=_num_parameters(sampler.model),
        exchangeable=tuple((tuple(dict(each.axes)), each.labels) for each in sampler.exchangeable),
    )


def _site(site: Site, raw: dict[str, Any], sampler: BuiltSampler) -> SiteRow:
    model = sampler.model
    return SiteRow(
        name=site.name,
        family=family(raw["fn"]),
        support=_support(site, raw["fn"].support),
        shape=np.shape(raw["value"]),
        plates=tuple(plate for plate, _ in site.plates),
        parents=tuple(other.name for other in sampler.sites if other.name in site.parents),
        observed=site.observed,
        follows_itself=isinstance(model, StateSpaceModel) and site.name == model.state,
    )


def _block(block: Block, plan: Plan, target: Target, raw: dict[str, Any]) -> BlockRow:
    sites = by_name(target.sites)
    factors = [sites[name] for name in touched(target.sites, block.sites)]
    num_elements = prod(target.plate_sizes[plate] for plate in block.element_plates(plan.partition))
    return BlockRow(
        name=block.name,
        sites=block.sites,
        proposal="none" if block.kernel is None else block.first_kernel.summary,
        move=block.move.summary,
        weight=block.weight_summary(plan.partition),
        given=tuple(
            site.name
            for site in target.sites
            if site.name not in block.sites and any(site.name in factor.parents for factor in factors)
        ),
        children=tuple(_seen(factor, block, sites) for factor in factors if factor.name not in block.sites),
        num_elements=num_elements,
        num_numbers=sum(np.size(raw[name]["value"]) for name in block.sites) // num_elements,
        num_parameters=_num_parameters(block.kernel),
    )


def _seen(factor: Site, block: Block, sites: dict[str, Site]) -> Seen:
    own = [sites[name] for name in block.sites if name in factor.parents]
    pooled = tuple(plate for plate, _ in factor.plates if any(site.axis(plate) is None for site in own))
    routed = block.assigned_by if block.assigned_by in factor.parents else None
    return Seen(factor.name, pooled, routed)


def _first_draw(sampler: BuiltSampler) -> str:
    if sampler.bridge is not None and sampler.bridge_below is None:
        return sampler.bridge.summary
    start, plan = sampler.start, initial_plan(sampler.start.blocks)
    if start is sampler:
        return f"by the blocks, {' → '.join(','.join(names) for _, names in plan)}"
    how = (f"{','.join(names)} ({start.blocks[index].kernel.summary})" for index, names in plan)
    other = f"by another sampler, {' → '.join(how)}"
    if sampler.bridge is None or sampler.bridge_below is None:
        return other
    plates, few = sampler.bridge_below
    return f"{other}; with fewer than {few} {' × '.join(plates)} {sampler.bridge.summary}"


def _num_parameters(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array)))


def _support(site: Site, constraint: Any) -> str:
    """A constraint in a few characters, such as `real`, `> 0`, `0 to 1` or `simplex`."""
    if site.support is not None:
        values = [str(value) for value in site.support]
        return ", ".join(values) if len(values) <= _MOST_VALUES else f"{values[0]} to {values[-1]}"
    while hasattr(constraint, "base_constraint"):
        constraint = constraint.base_constraint
    low, high = (_bound(getattr(constraint, f"{side}_bound", None)) for side in ("lower", "upper"))
    if low is not None and high is not None:
        return f"{low} to {high}"
    if low is not None:
        return f"{'≥' if site.discrete else '>'} {low}"
    # `OrderedVector` and `_OrderedVector`, as constraints are called in different versions, become `ordered vector`.
    return " ".join(re.findall(r"[A-Z]?[a-z]+", type(constraint).__name__)).lower()


def _bound(value: Any) -> str | None:
    """A bound as text, if it is one number for all entries."""
    values = np.unique(np.asarray(np.nan if value is None else value, float))
    return f"{values[0]:g}" if values.size == 1 and np.isfinite(values[0]) else None
