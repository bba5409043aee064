"""Rules about proposals: their sites, shapes and supports, and their behaviour under padding."""

import jax

from popgibbs._typing import Values
from popgibbs.building.label_rules import check_shuffled
from popgibbs.building.messages import first_line
from popgibbs.building.probes import Draw, Findings
from popgibbs.model import AbstractSite, Conditional, Partition, Target, abstract_sites, by_name, latent_names
from popgibbs.proposals import Kernel, sites_at
from popgibbs.smc import Block, initial_plan

Sampled = dict[Draw, dict[str, AbstractSite]]
"""The sites that each proposal samples, for proposals that are not built from the model."""


def check_first_draws(blocks: tuple[Block, ...], target: Target) -> Sampled:
    """Check that every site is first drawn by a block that has all its inputs by then."""
    draws = []
    sites = by_name(target.sites)
    drawn: tuple[str, ...] = ()
    for index, names in initial_plan(blocks):
        block = blocks[index]
        if block.kernel is None:
            raise ValueError(
                f"block '{block.name}' moves {list(names)} by HMC, but nothing draws them first; give it a proposal, "
                "put a block that contains them before it, or pass `initial=` to APG"
            )
        if block.needs_parents:
            for name in names:
                if undrawn := sorted(sites[name].parents - set(drawn) - set(names)):
                    raise ValueError(
                        f"block '{block.name}': {type(block.kernel).__name__} cannot draw '{name}' first, because its "
                        f"parents {undrawn} are drawn by later blocks; put those blocks before it"
                    )
        draws.append(Draw(index, names, drawn, initial=True))
        drawn += names
    return checked(draws, blocks, target)


def check_exchangeable(blocks: tuple[Block, ...], target: Target) -> None:
    """Check that shuffled components are drawn together, independently, and before other sites of their plate."""
    first = dict(initial_plan(blocks))
    drawn: tuple[str, ...] = ()
    for index, block in enumerate(blocks):
        names = first.get(index, ())
        if block.exchangeable is not None:
            if not names:
                what = f"block '{block.name}': exchangeable='{block.exchangeable}'"
                raise ValueError(f"{what} applies to a first draw, but earlier blocks draw its sites; set it on those")
            check_shuffled(block.name, block.kernel, block.exchangeable, target, names, drawn)
        drawn += names


def updates_of(blocks: tuple[Block, ...], target: Target) -> list[Draw]:
    """The updates of all blocks that use a proposal, each given the sites of the other blocks."""
    draws = []
    for index, block in enumerate(blocks):
        if block.proposes:
            others = tuple(name for name in latent_names(target.sites) if name not in block.sites)
            draws.append(Draw(index, block.sites, others, initial=False))
    return draws


def is_weighed(block: Block) -> bool:
    """Whether a block's updates are weighed, by choice or by default, so that an impossible one would bias them."""
    return block.move.weighs and not block.kernel.is_exact


def checked(draws: list[Draw], blocks: tuple[Block, ...], target: Target) -> Sampled:
    """Check that proposals which are not built from the model sample exactly their sites."""
    foreign = [draw for draw in draws if not blocks[draw.block].kernel.from_model]
    return {draw: _checked_sites(blocks[draw.block], draw, target) for draw in foreign}


def first_partition(index: int, partition: Partition, sampled: Sampled, target: Target) -> Partition:
    """The split of a block's first draw: that of its updates, if its distributions have the model's batch shapes."""
    modelled = abstract_sites(target.program)
    for draw, sites in sampled.items():
        if draw.block == index and draw.initial:
            shapes = {name: (sites[name].batch_shape, modelled[name].batch_shape) for name in draw.names}
            if any(mine not in (None, models) for mine, models in shapes.values()):
                return Partition(target.sites)
    return partition


def _what(block: Block, initial: bool) -> str:
    return f"block '{block.name}': its proposal" + ("'s first draw" if initial else "")


def _checked_sites(block: Block, draw: Draw, target: Target) -> dict[str, AbstractSite]:
    """Check that a proposal samples exactly its block's sites, with the shapes that the model gives them."""
    what = _what(block, draw.initial)
    modelled = abstract_sites(target.program)
    values = {name: site.value for name, site in modelled.items() if not site.observed}

    def bound(latents: Values) -> tuple[Kernel, Conditional]:
        return block.kernel, draw.conditional(target, block, latents)

    try:
        proposed = sites_at(bound, {name: values[name] for name in (*draw.given, *draw.names)})
    except KeyError as error:
        remedy = "define `initial`, or put the block that draws it before this one" if draw.initial else "check the name"
        raise ValueError(f"{what} reads {error}, which has not been drawn; {remedy}") from error
    except Exception as error:
        raise ValueError(f"{what} fails: {first_line(error)}") from error
    if observed := sorted(name for name, site in proposed.items() if site.observed):
        raise ValueError(f"{what} observes {observed}; a proposal only samples")
    if missing := sorted(set(draw.names) - set(proposed)):
        raise ValueError(f"{what} does not sample the sites {missing}")
    if extra := sorted(set(proposed) - set(block.sites)):
        raise ValueError(f"{what} samples the sites {extra}, which are not the block's")
    for name in draw.names:
        mine, models = proposed[name], modelled[name]
        if mine.altered:
            raise ValueError(f"{what} masks or scales the density of '{name}'; it must be the density of its draws")
        shape = jax.eval_shape(block.probed, models.value).shape
        if mine.value.shape != shape:
            whose = "the model's" if shape == models.value.shape else "one step of the model"
            raise ValueError(f"{what} draws '{name}' with shape {mine.value.shape}; {whose} has shape {shape}")
        if mine.discrete != models.discrete:
            kinds = {True: "discrete", False: "continuous"}
            raise ValueError(f"{what} draws '{name}' as {kinds[mine.discrete]}; the model's is {kinds[models.discrete]}")
        declared = [plate for plate, _ in by_name(target.sites)[name].plates if plate in target.data.mask]
        if block.splits and declared and mine.batch_shape not in (None, models.batch_shape):
            raise ValueError(
                f"{what} gives '{name}' batch shape {mine.batch_shape}; inside the declared plate '{declared[0]}' it "
                f"must be the model's, {models.batch_shape}, so that padding can be masked"
            )
    return proposed


def raise_findings(findings: Findings, blocks: tuple[Block, ...]) -> None:
    for draw, inside in findings.inside_model.items():
        for name in draw.names:
            what = _what(blocks[draw.block], draw.initial)
            if not inside[name]:
                raise ValueError(f"{what} draws values of '{name}' outside the support that the model gives it")
            if not findings.inside_proposal[draw][name]:
                raise ValueError(f"{what} cannot draw values of '{name}' that the model can: its support is too narrow")


def found_padding(findings: Findings, blocks: tuple[Block, ...]) -> str | None:
    """Why instances cannot be padded, if a site or a proposal changes with padding."""
    for name, same in findings.padding_of_sites.items():
        if not same:
            return (
                f"the site '{name}' changes when an instance is padded; inside a declared plate a site may depend only "
                "on the data of its own element"
            )
    for draw, same in findings.padding_of_proposals.items():
        if not same:
            what = _what(blocks[draw.block], draw.initial)
            return f"{what} changes when an instance is padded; multiply the values that it pools by data.mask"
    return None
