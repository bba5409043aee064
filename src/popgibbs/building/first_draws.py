"""The first draw of samplers whose blocks are all built from the model."""

from collections.abc import Sequence

from popgibbs.building.block_rules import shared_plates
from popgibbs.model import Components, Partition, Target, by_name, latent_names, touched
from popgibbs.moves import Metropolis
from popgibbs.proposals import ComponentDraw, seeds_among
from popgibbs.smc import Block, BuiltSampler, Plan, initial_plan, systematic


def has_components(blocks: tuple[Block, ...]) -> bool:
    """Whether a block's sites are components: they start alike, and no statistic of all data tells them apart."""
    return any(block.assigned_by for block in blocks)


def is_direct(blocks: tuple[Block, ...], target: Target) -> bool:
    """Whether every site's first draw already sees all factors that contain the site."""
    sites, drawn = by_name(target.sites), set[str]()
    for _, names in initial_plan(blocks):
        drawn |= set(names)
        needed = set(names).union(*(sites[name].parents | {name} for name in touched(target.sites, names)))
        if {name for name in needed if not sites[name].observed} - drawn:
            return False
    return True


def component_draw(
    blocks: tuple[Block, ...], plans: Sequence[Plan], exchangeable: Sequence[Components], target: Target
) -> BuiltSampler | None:
    """A sampler whose first draw finds components by EM, for models with one assignment and no other discrete site.

    None where observed entries cannot be seeds, such as the words of documents; EM from random gates finds poor modes.
    """
    sites = by_name(target.sites)
    named = {block.assigned_by for block in blocks if block.assigned_by}
    discrete = [name for name in latent_names(target.sites) if sites[name].discrete]
    if len(named) != 1 or discrete != list(named):
        return None
    (by,) = named
    (plate,) = {
        plate for block in blocks if block.assigned_by for plate in shared_plates([sites[n] for n in block.sites])
    }
    outside = any(sites[name].axis(p) is None for name in touched(target.sites, [by]) for p, _ in sites[by].plates)
    if outside or not seeds_among(target, by):
        return None
    alike = next((components for components in exchangeable if components.plate == plate), None)
    continuous = tuple(name for name in latent_names(target.sites) if name != by)
    kernel = ComponentDraw(by, plate, () if alike is None else alike.axes)
    whole = Partition(target.sites)
    place = next(index for index, block in enumerate(blocks) if by in block.sites)
    return BuiltSampler(
        model=None,
        blocks=(Block(*continuous, proposal=kernel, move=Metropolis(), name="components"), blocks[place]),
        first=None,
        sites=target.sites,
        plans=(Plan(partition=whole, first_partition=whole, summed=None, proved=True), plans[place]),
        resampler=systematic,
        ess_threshold=1.0,
    )
