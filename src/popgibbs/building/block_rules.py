"""Rules about blocks, and the split of their weights into elements."""

import warnings
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import jax
from numpyro.ops.provenance import eval_provenance

from popgibbs.building.probes import Findings
from popgibbs.model import (
    Partition,
    Site,
    StateSpaceModel,
    Target,
    by_name,
    latent_names,
    one_event,
    program,
    shared_plates,
    touched,
)
from popgibbs.proposals import Enumerated
from popgibbs.smc import Block

_MOST_JOINT = 4_096  # values of finite sites that are enumerated together, where a user asks for it


def check_cover(sites: tuple[Site, ...], blocks: tuple[Block, ...]) -> None:
    if not blocks:
        raise ValueError("there are no blocks; add a Block(...) for the model's sites")
    named, latents = by_name(sites), latent_names(sites)
    for block in blocks:
        for name in block.sites:
            if name not in named:
                raise ValueError(
                    f"block '{block.name}' names the site '{name}', which the model does not have; its latent sites are "
                    f"{sorted(latents)}"
                )
            if named[name].observed:
                raise ValueError(f"block '{block.name}' names the site '{name}', which is observed")
    covered = {name for block in blocks for name in block.sites}
    if missing := sorted(set(latents) - covered):
        raise ValueError(f"no block updates the sites {missing}; add them to a Block(...)")


def check_models(blocks: tuple[Block, ...], target: Target) -> None:
    """Check that every block can update its sites in this model."""
    for block in blocks:
        block.check_model(target)
    if isinstance(target.model, StateSpaceModel):
        for block in blocks:
            if target.model.state in block.sites and block.move.sums_out_finite:
                _check_one_support(block, target)


def _check_one_support(block: Block, target: Target) -> None:
    """Check that all states have one support, because HMC maps them to the real line by one bijection."""
    kinds: list[Any] = []

    def supports(previous: Any) -> Any:
        shared = program.returned(target.model.globals, {})
        later = one_event(target.model.transition(previous, shared)).support
        kinds.append(jax.tree.structure(one_event(target.model.initial(shared)).support) == jax.tree.structure(later))
        return jax.tree.leaves(later)

    state = program.abstract_sites(target.program)[target.model.state].value
    moving = eval_provenance(supports, previous=jax.ShapeDtypeStruct(state.shape[1:], state.dtype))
    if not kinds[0] or (any(moving) and block.splits):
        raise ValueError(
            f"block '{block.name}': HMC needs states whose support is the same at every step; use Metropolis()"
        )


def finite_part(block: Block, sites: tuple[Site, ...]) -> Block | None:
    """The finite sites of a block that its move sums out, as a separate block."""
    named = by_name(sites)
    if not (finite := block.summed_sites(named)):
        return None
    if len(finite) == len(block.sites):
        raise ValueError(f"block '{block.name}': HMC has no continuous site to move; use Enumerated() as its proposal")
    for name in block.sites:
        if bounding := sorted(named[name].bounded_by & set(finite)):
            raise ValueError(
                f"block '{block.name}': HMC cannot sum out '{bounding[0]}', on which the support of '{name}' depends; "
                f"put '{bounding[0]}' into a separate block"
            )
    return Block(*finite, proposal=Enumerated())


def candidate(block: Block, target: Target) -> Partition:
    """The finest split of the block's weight that the plates suggest."""
    sites = by_name(target.sites)
    if block.move.sums_out_finite:
        summed = block.summed_sites(sites)
        if endless := [name for name in block.sites if sites[name].discrete and name not in summed]:
            raise ValueError(f"block '{block.name}': HMC can neither move the discrete sites {endless} nor sum them out")
        return Partition(target.sites)
    if block.kernel is None:
        raise ValueError(f"block '{block.name}' has no proposal; pass proposal=..., Prior() or Enumerated()")
    endless = [name for name in block.sites if sites[name].support is None]
    if block.kernel.needs_finite and endless:
        raise ValueError(
            f"block '{block.name}': {type(block.kernel).__name__} needs finite discrete sites; {endless} are not"
        )
    if block.move.needs_finite and endless:
        raise ValueError(
            f"block '{block.name}': {type(block.move).__name__}() needs finite discrete sites; {endless} are not"
        )
    if block.kernel.needs_count:
        _check_count(block, sites)
    if not (block.splits and block.kernel.splits):
        return Partition(target.sites)
    if block.assigned_by:
        return _by_component(block, target)
    factors = [sites[name] for name in touched(target.sites, block.updated)]
    shared = shared_plates(factors)
    draws_together = block.kernel.needs_finite or block.kernel.gaussians(block.sites, Partition(target.sites))
    if not (shared or draws_together or block.move.needs_finite):
        _say_why_whole(block, [sites[name] for name in block.updated], factors)
    return Partition(target.sites, shared)


def _check_count(block: Block, sites: Mapping[str, Site]) -> None:
    kind = type(block.kernel).__name__
    name, *others = block.sites
    if others:
        raise ValueError(f"block '{block.name}': {kind} updates one site; give each of {list(block.sites)} its own block")
    if not sites[name].discrete:
        raise ValueError(f"block '{block.name}': {kind} needs a discrete site, but '{name}' is continuous")


def _say_why_whole(block: Block, own: list[Site], factors: list[Site]) -> None:
    """Warn if a factor from outside the block's plate prevents weights by element, which users would expect."""
    if not (plates_of_block := shared_plates(own)):
        return
    plate = plates_of_block[-1]
    outside = next(site.name for site in factors if site.axis(plate) is None)
    warnings.warn(
        f"block '{block.name}': its elements in the plate '{plate}' are weighed together, because '{outside}' depends "
        f"on them from outside the plate; if a discrete site assigns '{outside}' to the elements, name it with "
        "assigned_by=",
        stacklevel=4,
    )


def _by_component(block: Block, target: Target) -> Partition:
    """The split into components of the plate that contains the block's sites, with `assigned_by` for other factors."""
    sites = by_name(target.sites)
    label = f"block '{block.name}': assigned_by='{block.assigned_by}'"
    by = sites.get(block.assigned_by or "")
    if by is None or by.observed or by.support is None or block.assigned_by in block.sites:
        raise ValueError(f"{label} must name a finite discrete latent site of another block")
    shared = list(shared_plates([sites[name] for name in block.updated]))
    if len(shared) != 1:
        raise ValueError(
            f"{label} needs all sites of the block in one plate of components; their common plates are {shared}"
        )
    size = target.plate_sizes[shared[0]]
    if by.support != tuple(range(size)):
        raise ValueError(f"{label} takes the values {by.support}, which are not the {size} components of '{shared[0]}'")
    for name in touched(target.sites, block.updated):
        routed = sites[name].axis(shared[0]) is None
        if routed and any(sites[name].axis(plate) is None for plate, _ in by.plates):
            raise ValueError(f"{label}: '{name}' depends on the block but is outside the plates of '{block.assigned_by}'")
    return Partition(target.sites, tuple(shared), by)


def decide(index: int, block: Block, candidate: Partition, findings: Findings) -> Partition:
    """The candidate split if elements are independent; otherwise none, or an error if the block relies on it."""
    if candidate.whole:
        return candidate
    whole = Partition(candidate.sites)
    culprits = [name for name, independent in findings.independent[index].items() if not independent]
    if culprits:
        described = (
            f"block '{block.name}': the elements of the plate {list(candidate.plates)} are not independent: changing "
            f"one changes the log-probability of '{culprits[0]}' at another"
        )
        if block.assigned_automatically:
            return whole
        if block.assigned_by:
            raise ValueError(f"{described}; remove assigned_by='{block.assigned_by}'")
        if block.kernel.needs_finite or block.move.needs_finite:
            return whole
        warnings.warn(f"{described}; the block is weighed as a whole", stacklevel=4)
        return whole
    if not findings.proposal_splits[index]:
        if block.assigned_by:
            raise ValueError(
                f"block '{block.name}': assigned_by='{block.assigned_by}' weighs each component separately, but the "
                "proposal's log-probabilities do not split into components; give its sites the model's batch shape"
            )
        return whole
    return candidate


def check_one_integer(block: Block, partition: Partition, target: Target) -> None:
    """Check that every element of a block of counts has one number."""
    if not block.splits or block.kernel is None or not block.kernel.needs_count:
        return
    (name,) = block.sites
    if prod(program.shapes(target.program)[name]) > prod(partition.shape(target.plate_sizes)):
        raise ValueError(
            f"block '{block.name}': {type(block.kernel).__name__} draws one integer in each element, but '{name}' has "
            "several, because they are not independent of each other given the rest; split the site in the model, or use "
            "Prior()"
        )


def check_enumerable(block: Block, partition: Partition, target: Target) -> None:
    """Check that the finite sites of a block's elements have few joint values, if they are enumerated."""
    if not block.splits or block.kernel is None:
        return
    kind, shapes = type(block.kernel).__name__, program.shapes(target.program)
    for name in block.kernel.with_one_value(block.sites):
        if len(shapes[name]) != len(partition.plates):
            raise ValueError(
                f"block '{block.name}': {kind} needs '{name}' to have one value per element of the plates that all its "
                f"factors share; it has shape {shapes[name]}, and the shared plates are {list(partition.plates)}"
            )
    if not block.kernel.needs_finite:
        return
    number = num_joint([by_name(target.sites)[name] for name in block.sites], partition, target)
    if number is None or number > _MOST_JOINT:
        values = "any number of" if number is None else f"{number:,}"
        raise ValueError(
            f"block '{block.name}': {kind} would go through {values} joint values, because the entries of "
            f"{list(block.sites)} are not independent of each other given the rest; pass move=pg.Gibbs(), which draws "
            "one entry at a time, instead of a proposal"
        )


def num_joint(own: Sequence[Site], partition: Partition, target: Target) -> int | None:
    """How many joint values finite sites have in one element; None if that depends on the sizes of an instance."""
    shapes, sizes, number = program.shapes(target.program), target.plate_sizes, 1
    for site in own:
        inside = {plate for plate, _ in site.plates} - set(partition.plates)
        if inside & set(target.data.mask):
            return None
        assert site.support is not None
        number *= len(site.support) ** (prod(shapes[site.name]) // prod(partition.shape(sizes)))
    return number
