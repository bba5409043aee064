"""Rules about proposals: what they sample, with which shapes and supports, and what padding does to them."""

from popgibbs._typing import Values
from popgibbs.building.messages import first_line
from popgibbs.building.probes import Draw, Findings
from popgibbs.model import (
    Target,
    by_name,
    latent_names,
    program,
)
from popgibbs.moves import Weigh
from popgibbs.proposals import Enumerated, Prior, Programmed, check_shuffled
from popgibbs.smc import Block, SequenceBlock, initial_plan


def check_first_draws(blocks: tuple[Block, ...], target: Target) -> list[Draw]:
    """Every site is first drawn by a block that can see all it needs."""
    draws = []
    sites = by_name(target.sites)
    drawn: tuple[str, ...] = ()
    for index, names in initial_plan(blocks):
        block = blocks[index]
        if block.kernel is None:
            raise ValueError(
                f"block '{block.label}' moves {list(names)} by HMC but nothing draws them first; give it a proposal, put "
                "a block that contains them before it, or pass `initial=` to APG"
            )
        needs_parents = isinstance(block, SequenceBlock) and isinstance(block.kernel, Enumerated)
        if isinstance(block.kernel, Prior) or needs_parents:
            for name in names:
                if undrawn := sorted(sites[name].parents - set(drawn) - set(names)):
                    raise ValueError(
                        f"block '{block.label}': {type(block.kernel).__name__} cannot draw '{name}' first, because its "
                        f"parents {undrawn} are drawn by later blocks; put those blocks before it"
                    )
        draws.append(Draw(index, names, drawn, initial=True, step=_step_of(block)))
        drawn += names
    return checked(draws, blocks, target)


def check_exchangeable(blocks: tuple[Block, ...], target: Target) -> None:
    """Components that are shuffled are drawn together, each by itself, and first of their plate."""
    first = dict(initial_plan(blocks))
    drawn: tuple[str, ...] = ()
    for index, block in enumerate(blocks):
        names = first.get(index, ())
        if block.exchangeable is not None:
            if not names:
                what = f"block '{block.label}': exchangeable='{block.exchangeable}'"
                raise ValueError(f"{what} is about a first draw, but earlier blocks draw its sites; put it on those")
            check_shuffled(block.label, block.first_kernel, target, names, drawn)
        drawn += names


def updates_of(blocks: tuple[Block, ...], target: Target) -> list[Draw]:
    """A block's proposal sees everything that is not its own."""
    draws = []
    for index, block in enumerate(blocks):
        if block.proposes:
            others = tuple(name for name in latent_names(target.sites) if name not in block.sites)
            draws.append(Draw(index, block.sites, others, initial=False, step=_step_of(block)))
    return draws


def is_weighed(block: Block) -> bool:
    """Whether a block's updates are weighed, by choice or by default; what is enumerated is possible by construction."""
    return not isinstance(block.kernel, Enumerated) and (isinstance(block.move, Weigh))


def checked(draws: list[Draw], blocks: tuple[Block, ...], target: Target) -> list[Draw]:
    """Those of proposals that users wrote, which sample just what they should."""
    programmed = [draw for draw in draws if isinstance(blocks[draw.block].kernel, Programmed)]
    for draw in programmed:
        _check_program(blocks[draw.block], draw, target)
    return programmed


def _step_of(block: Block) -> int | None:
    """The step at which proposals of a sequence are judged: it has a step before and one after."""
    return 1 if isinstance(block, SequenceBlock) else None


def _what(block: Block, initial: bool) -> str:
    return f"block '{block.label}': its proposal" + ("'s first draw" if initial else "")


def _check_program(block: Block, draw: Draw, target: Target) -> None:
    """A proposal samples exactly its block's sites, with the shapes that the model gives them."""
    what = _what(block, draw.initial)
    modelled = program.abstract_sites(target.program)

    def propose(given: Values, own: Values) -> program.Program:
        return draw.conditional(target, block, {**given, **own}).bind(block.proposal)

    values = {name: site.value for name, site in modelled.items()}
    try:
        given = {name: values[name] for name in draw.given}
        proposed = program.abstract_sites(propose, given, {name: values[name] for name in draw.names})
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
            raise ValueError(f"{what} masks or scales the density of '{name}'; it must be the density of what it draws")
        shape = models.value.shape if draw.step is None else models.value.shape[1:]
        if mine.value.shape != shape:
            whose = "the model's" if draw.step is None else "the model's of one step"
            raise ValueError(f"{what} draws '{name}' with shape {mine.value.shape}; {whose} has shape {shape}")
        if mine.discrete != models.discrete:
            kinds = {True: "discrete", False: "continuous"}
            raise ValueError(f"{what} draws '{name}' as {kinds[mine.discrete]}; the model's is {kinds[models.discrete]}")
        declared = [plate for plate, _ in by_name(target.sites)[name].plates if plate in target.data.mask]
        if draw.step is None and declared and mine.batch_shape != models.batch_shape:
            raise ValueError(
                f"{what} gives '{name}' the batch shape {mine.batch_shape}; inside the declared plate '{declared[0]}' it "
                f"must be the model's, {models.batch_shape}, so that padding can be masked"
            )


def raise_findings(findings: Findings, blocks: tuple[Block, ...]) -> None:
    for draw, inside in findings.inside_model.items():
        for name in draw.names:
            what = _what(blocks[draw.block], draw.initial)
            if not inside[name]:
                raise ValueError(f"{what} draws values of '{name}' outside the support that the model gives it")
            if not findings.inside_proposal[draw][name]:
                raise ValueError(f"{what} cannot draw values of '{name}' that the model can: its support is too narrow")


def found_padding(findings: Findings, blocks: tuple[Block, ...]) -> str | None:
    """What padding would change."""
    for name, same in findings.padding_of_sites.items():
        if not same:
            return (
                f"the site '{name}' changes when an instance is padded; inside a declared plate a site may depend on "
                "data of its own element only"
            )
    for draw, same in findings.padding_of_proposals.items():
        if not same:
            what = _what(blocks[draw.block], draw.initial)
            return f"{what} changes when an instance is padded; multiply what it pools by data.mask"
    return None
