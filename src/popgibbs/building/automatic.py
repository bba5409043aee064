"""Blocks and proposals built from the model, for users who name neither."""

import warnings
from collections.abc import Iterable, Sequence
from itertools import combinations
from math import prod

import jax
from numpyro.distributions.transforms import biject_to

from popgibbs.building.block_rules import num_joint
from popgibbs.model import (
    Partition,
    Site,
    Target,
    by_name,
    latent_names,
    program,
    raw_sites,
    shared_plates,
    touched,
)
from popgibbs.moves import Gibbs, Metropolis
from popgibbs.proposals import (
    Counts,
    Enumerated,
    Kernel,
    Laplace,
    MixedLaplace,
    NestedLaplace,
    Neural,
    Prior,
    lower_partition,
)
from popgibbs.smc import Block, NonCentredBlock, scaled_by

_MOST_NUMBERS = 100  # that one Gaussian may have: its precision is a matrix, and its draws are accepted all or none
MOST_UPPER = 8  # numbers of one Gaussian whose mode is searched without gradients, at points all around it
_MOST_JOINT = 64  # values of finite sites that are enumerated together without being asked for
_MOST_MIXED = 16  # values of finite sites, for each of which continuous ones are fitted


def completed(blocks: tuple[Block, ...] | None, target: Target, *, learned: bool) -> tuple[Block, ...]:
    """The blocks with a proposal built from the model where the user gave none.

    By default there is one block per latent site, followed by a non-centred one where that helps; finite sites that
    depend on each other share one. If `learned`, continuous sites get networks to be trained.
    """
    if blocks is None:
        blocks = tuple(block for group in _groups(target) for block in _blocks_of(group, target))
    return tuple(_completed(block, target, learned) for block in blocks)


def _groups(target: Target) -> list[tuple[Site, ...]]:
    """The latents in the order of the model, where sites that are drawn together follow the first of them.

    Updated one at a time, sites that one factor contains can get stuck where the data tell only their combination. So
    finite sites are enumerated together, and continuous sites of the same plates are drawn with them.
    """
    groups = [(site,) for site in target.sites if not site.observed]
    while pair := next((pair for pair in combinations(groups, 2) if _go_together(*pair, target)), None):
        first, second = pair
        groups = [first + second if group is first else group for group in groups if group is not second]
    return groups


def _go_together(first: tuple[Site, ...], second: tuple[Site, ...], target: Target) -> bool:
    """Whether sites of the same plates, some of them finite with few joint values, are in one factor."""
    both = first + second
    finite = [site for site in both if site.support is not None]
    if not finite or len({site.plates for site in both}) > 1:
        return False
    # A continuous site that only says how likely a finite one is, such as a mixture's weights, mixes well on its own.
    binding = [site for site in target.sites if len(finite) == len(both) or site not in finite]
    ours, theirs = ({site.name for site in group} for group in (first, second))
    if not any(names & ours and names & theirs for names in ({site.name} | site.parents for site in binding)):
        return False
    if (num_values := num_joint(finite, _partition_of(both, target), target)) is None:
        return False
    if len(finite) == len(both):
        return num_values <= _MOST_JOINT
    return num_values <= _MOST_MIXED and _mixes(both, target)


def _mixes(own: Sequence[Site], target: Target) -> bool:
    """Whether one kernel can draw finite and continuous sites together: in small elements, and without funnels."""
    names = {site.name for site in own}
    rest = [site for site in own if site.support is None]
    continuous = {site.name for site in rest}
    partition = _partition_of(own, target)
    return (
        partition.plates == shared_plates(own)
        and not any(site.discrete or site.parents & continuous or site.bounded_by & names for site in rest)
        and num_numbers_of(continuous, partition, target) <= MOST_UPPER
    )


def _partition_of(own: Sequence[Site], target: Target) -> Partition:
    """The split of some sites by the plates that all their factors share."""
    sites = by_name(target.sites)
    return Partition(target.sites, shared_plates([sites[n] for n in touched(target.sites, [site.name for site in own])]))


def _blocks_of(group: tuple[Site, ...], target: Target) -> tuple[Block, ...]:
    """The blocks that update a site: one given the sites below it, and one that holds their standardised values.

    The second doubles the cost. It is for a location or a scale of sites in a plate: where data say little about each of
    them, the first alone mixes tens of times as slowly. It is left out where its weight would not split into the
    elements of the site's plates.
    """
    name, *others = (site.name for site in group)
    if others:
        return (Block(name, *others),)
    sites = by_name(target.sites)
    own, centred = {plate for plate, _ in sites[name].plates}, Block(name)
    explained = frozenset().union(*(site.parents for site in target.sites))
    held = [
        child
        for child in scaled_by((name,), target.sites)
        if child in explained and {plate for plate, _ in sites[child].plates} - own
    ]
    if sites[name].discrete or not held:
        return (centred,)
    non_centred = NonCentredBlock(name, holding=held)
    factors = [sites[factor] for factor in touched(target.sites, non_centred.updated)]
    splits = own <= set(shared_plates([sites[name], *factors]))
    return (centred, non_centred) if splits else (centred,)


def is_automatic(blocks: tuple[Block, ...] | None) -> bool:
    """Whether every block leaves its proposal to the sampler."""
    return blocks is None or all(block.is_automatic for block in blocks)


def _completed(block: Block, target: Target, learned: bool) -> Block:
    sites, block = by_name(target.sites), block.resolved(target.sites)
    if isinstance(block.kernel, (Counts, Laplace, Neural)) and block.chosen is None:
        return block.changed(chosen=Metropolis())
    if not block.is_automatic or not all(name in sites and not sites[name].observed for name in block.updated):
        return block  # the rules about blocks say what is wrong
    own = [sites[name] for name in block.sites]
    endless = any(site.support is None for site in own)
    if block.assigned_by is None and endless and (by := _assignment(block, target)):
        block = block.changed(assigned_by=by.name, assigned_automatically=True)
    if block.move.needs_finite:
        return block.changed(kernel=Prior())
    if not endless:
        number = num_joint(own, _partition_of(own, target), target)
        if block.chosen is None and (number is None or number > _MOST_JOINT):
            return block.changed(kernel=Prior(), chosen=Gibbs())
        return block.changed(kernel=Enumerated())
    kernel = _kernel(block, own, target, learned and block.learns)
    move = block.chosen if block.chosen is not None or kernel.is_exact else Metropolis()
    return block.changed(kernel=kernel, chosen=move)


def _kernel(block: Block, own: list[Site], target: Target, learned: bool) -> Kernel:
    """The proposal that fits the supports of a block's sites."""
    finite = [site.name for site in own if site.support is not None]
    counts = [site.name for site in own if site.discrete and site.support is None]
    if finite or (counts and len(counts) < len(own)):
        if counts or block.assigned_by or not _mixes(own, target):
            raise ValueError(
                f"block '{block.name}': no proposal can be built for these discrete and continuous sites together; put "
                f"{sorted({*finite, *counts})} into separate blocks, or pass proposal="
            )
        rest = [site for site in own if site.support is None]
        _check_bijections(block, rest, target)
        one = num_numbers_of([site.name for site in rest], _partition_of(own, target), target) == 1
        return MixedLaplace(tuple(finite), Laplace().with_search() if one else Laplace())
    if counts:
        return _kernel_of_counts(block, own, target)
    _check_bijections(block, own, target)
    plates = shared_plates(
        own if block.assigned_by else [by_name(target.sites)[n] for n in touched(target.sites, block.sites)]
    )
    by = by_name(target.sites)[block.assigned_by] if block.assigned_by else None
    return _nested(own, Partition(target.sites, plates, by), target) or (Neural() if learned else Laplace())


def _nested(own: list[Site], partition: Partition, target: Target) -> Kernel | None:
    """Sites one after another where some are below others, because one Gaussian for all cannot follow a funnel."""
    names = {site.name for site in own}
    roots = [site for site in own if not site.parents & names]
    upper = tuple(site.name for site in roots if any(site.name in other.parents for other in own))
    if not upper or num_numbers_of(upper, partition, target) > MOST_UPPER:
        return None
    lower = [site for site in own if site.name not in upper]
    elements = lower_partition(tuple(site.name for site in lower), partition)
    num_below = prod(elements.shape(target.plate_sizes)) // prod(partition.shape(target.plate_sizes))
    return NestedLaplace(upper, _nested(lower, elements, target) or Laplace().together(num_below))


def _kernel_of_counts(block: Block, own: list[Site], target: Target) -> Kernel:
    """A grid of integers around the mode, where each element of the block has one integer."""
    factors = own if block.assigned_by else [by_name(target.sites)[name] for name in touched(target.sites, block.sites)]
    num_elements = prod(target.plate_sizes[plate] for plate in shared_plates(factors))
    shapes = program.shapes(target.program)
    if sum(prod(shapes[site.name]) for site in own) == num_elements:
        return Counts()
    warnings.warn(
        f"block '{block.name}': {list(block.sites)} are counts without bound, of which several depend on each other "
        "given the rest; they are proposed together from their prior, which is slow where data say much about them; give "
        "each site a block of its own, sample it in the plates that all its factors share, or pass proposal=",
        stacklevel=6,
    )
    return Prior()


def _check_bijections(block: Block, own: Sequence[Site], target: Target) -> None:
    """Check that continuous sites can be mapped to the real line, by a map that no other site of the block changes."""
    unknown: dict[str, str] = {}

    def trace() -> None:
        for name, site in raw_sites(target.program, jax.random.key(0)).items():
            try:
                biject_to(site["fn"].support)
            except NotImplementedError:
                unknown[name] = type(site["fn"].support).__name__

    jax.eval_shape(trace)
    for site in own:
        if site.name in unknown:
            raise ValueError(
                f"block '{block.name}': no proposal can be built for '{site.name}', because no bijection is known from "
                f"the reals to its support, {unknown[site.name]}; pass proposal="
            )
        if bounding := sorted(site.bounded_by & set(block.sites)):
            raise ValueError(
                f"block '{block.name}': the support of '{site.name}' depends on '{bounding[0]}', so that no proposal can "
                f"be built for both together; give each a block of its own"
            )


def _assignment(block: Block, target: Target) -> Site | None:
    """The finite site that assigns other factors to the components of the block's plate, if there is exactly one."""
    sites = by_name(target.sites)
    plates = shared_plates([sites[name] for name in block.updated])
    if len(plates) != 1:
        return None
    (plate,) = plates
    outside = [sites[name] for name in touched(target.sites, block.updated) if sites[name].axis(plate) is None]
    components = tuple(range(target.plate_sizes[plate]))
    candidates = [
        sites[name]
        for name in latent_names(target.sites)
        if name not in block.sites
        and sites[name].support == components
        and sites[name].axis(plate) is None
        and all(name in site.parents and _inside(site, sites[name]) for site in outside)
    ]
    return candidates[0] if outside and len(candidates) == 1 else None


def _inside(site: Site, by: Site) -> bool:
    """Whether a factor lies in all plates of the assignment."""
    return all(site.axis(plate) is not None for plate, _ in by.plates)


def check_sizes(block: Block, partition: Partition, target: Target) -> None:
    """Check that no element of a block is too large for one Gaussian."""
    if block.kernel is None:
        return
    for names, elements in block.kernel.gaussians(block.sites, partition):
        if (num_numbers := num_numbers_of(names, elements, target)) > _MOST_NUMBERS:
            raise ValueError(
                f"block '{block.name}': {type(block.kernel).__name__}() would need one Gaussian for {num_numbers} "
                "numbers, because they are not independent of each other given the rest; split the site in the model, or "
                "pass another proposal="
            )
        if block.kernel.searches and num_numbers > 1:
            raise ValueError(
                f"block '{block.name}': {type(block.kernel).__name__}(starts=...) looks for modes of one number, but "
                f"each element has {num_numbers}; leave out starts="
            )


def num_numbers_of(names: Iterable[str], elements: Partition, target: Target) -> int:
    """How many numbers of the named sites one element has."""
    shapes = program.shapes(target.program)
    return sum(prod(shapes[name]) for name in names) // prod(elements.shape(target.plate_sizes))
