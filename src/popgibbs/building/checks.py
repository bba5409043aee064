"""Errors when a sampler is built, in the user's words: each names the site, the block and the way out."""

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpyro.ops.provenance import eval_provenance

from popgibbs._typing import Resampler, Values
from popgibbs.building.lapack import warn_of_waiting_calls
from popgibbs.building.probes import Draw, Findings, measure, padded_by_one
from popgibbs.data import Axes, complete, pad, plates
from popgibbs.model import (
    Partition,
    Site,
    StateSpaceModel,
    Summed,
    Target,
    by_name,
    latent_names,
    one_event,
    program,
    touched,
)
from popgibbs.moves import HMC, Metropolis, Weigh
from popgibbs.proposals import Enumerated, Prior, Programmed, check_shuffled
from popgibbs.smc import Block, Sampler, SequenceBlock, initial_plan

_MIN_SIZE = 4  # of a declared plate in the checks; independence cannot be seen on fewer elements


def build(
    model: Any,
    blocks: tuple[Block, ...],
    axes: Axes,
    example: Values,
    resampler: Resampler,
    resample_below: float,
    first: Sampler | None = None,
) -> Sampler:
    """Check a model, its blocks and an example instance against each other, and fix how each block's weight splits."""
    if not 0.0 <= resample_below <= 1.0:
        raise ValueError(f"resample_below={resample_below} is a fraction of the particles: it lies between 0 and 1")
    _check_shared_arrays(model, (*blocks, *(first.blocks if first else ())))
    _check_signature(model, example)
    is_small = min(complete(example, axes).sizes, default=_MIN_SIZE) < _MIN_SIZE
    example, cannot_pad = _enlarged(model, example, axes)
    example = {name: jnp.asarray(value) for name, value in example.items()}  # as models see them
    sites = _inspect(model, example)
    target = Target(model, complete(example, axes), sites)
    cannot_pad = cannot_pad or _check_plates(target, axes) or _fails_padded(target, axes)
    _check_cover(sites, blocks)
    _check_sequences(blocks, target)
    summed_out = {i: part for i, block in enumerate(blocks) if (part := _finite_part(block, sites))}
    judged = (*blocks, *summed_out.values())
    candidates = tuple(_candidate(block, target) for block in judged)
    if first is None:
        first_draws = _check_first_draws(blocks, target)
        _check_exchangeable(blocks, target)
    elif (theirs := set(latent_names(first.sites))) == (ours := set(latent_names(sites))):
        first_draws = []
    else:
        raise ValueError(f"`initial=` draws the sites {sorted(theirs)}, but the model has {sorted(ours)}")
    updates = _updates(blocks, target)
    draws = first_draws + _checked(updates, blocks, target)
    warn_of_waiting_calls(target, blocks, draws)  # before anything runs, because that is where it could hang
    weighed = [draw for draw in updates if _is_weighed(blocks[draw.block])]
    findings = measure(target, judged, candidates, draws, weighed, axes, can_pad=cannot_pad is None)
    _raise_findings(findings, blocks)
    partitions = [_decide(i, block, candidates[i], findings) for i, block in enumerate(judged)]
    for block, partition in zip(judged, partitions, strict=True):
        if isinstance(block.kernel, Enumerated) and not isinstance(block, SequenceBlock):
            _check_enumerable(block, partition, target)
    summed: list[Summed | None] = [None] * len(blocks)
    for (i, part), partition in zip(summed_out.items(), partitions[len(blocks) :], strict=True):
        summed[i] = Summed(part.sites, partition)
    return Sampler(
        model=model,
        blocks=_with_moves(blocks, findings),
        first=None if first is None else first.without_model(),
        sites=sites,
        partitions=tuple(partitions[: len(blocks)]),
        summed=tuple(summed),
        resampler=resampler,
        resample_below=resample_below,
        unproved=tuple(i for i, block in enumerate(blocks) if not partitions[i].whole and not findings.proved[i]),
        small_example=is_small,
        cannot_pad=cannot_pad or _found_padding(findings, blocks) or (first.cannot_pad if first else None),
    )


# The model and its data -------------------------------------------------------------------------------------------------


def _check_shared_arrays(model: Any, blocks: tuple[Block, ...]) -> None:
    owners: dict[int, str] = {}
    for name, tree in [("the model", model), *((f"block '{block.label}'", block.kernel) for block in blocks)]:
        for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array)):
            if id(leaf) in owners:
                raise ValueError(
                    f"{name} holds an array that {owners[id(leaf)]} holds too, so it would be trained twice; build the "
                    "network anew, or put both uses into one module (as __call__ and initial)"
                )
            owners[id(leaf)] = name


def _check_signature(model: Any, example: Mapping[str, Any]) -> None:
    try:
        inspect.signature(model).bind(**example)
    except TypeError as error:
        raise ValueError(f"the model does not accept the data {sorted(example)}: {error}") from None


def _enlarged(model: Any, example: Values, axes: Axes) -> tuple[Values, str | None]:
    """The example with at least a few elements in every declared plate, by repetition, and why not if that fails."""
    sizes = {plate: mask.shape[0] for plate, mask in complete(example, axes).mask.items()}
    enlarged = pad(example, axes, {plate: max(size, _MIN_SIZE) for plate, size in sizes.items()})
    if all(size >= _MIN_SIZE for size in sizes.values()) or not _fails(model, enlarged) or _fails(model, example):
        return enlarged, None
    return example, _why_not_padded(_fails(model, enlarged), example, axes, sizes)


def _fails(model: Any, values: Values) -> str | None:
    """Why a model does not run on an instance."""
    try:
        program.abstract_sites(lambda: model(**{name: jnp.asarray(value) for name, value in values.items()}))
    except Exception as error:
        return _first_line(error)
    return None


def _fails_padded(target: Target, axes: Axes) -> str | None:
    """Why a model that runs on its example does not run on a padded one."""
    longer = padded_by_one(target, axes)
    if not (failure := _fails(target.model, longer.values)):
        return None
    return _why_not_padded(failure, target.data.values, axes, target.plate_sizes)


def _why_not_padded(failure: str | None, example: Mapping[str, Any], axes: Axes, sizes: Mapping[str, int]) -> str:
    declared = plates(axes)
    for name, value in example.items():
        for axis, size in enumerate(np.shape(value)):
            named = axes.get(name, ())
            alike = [plate for plate in declared if sizes[plate] == size and (axis >= len(named) or named[axis] is None)]
            if alike:
                return (
                    f"axis {axis} of '{name}' has {size} elements like the plate '{alike[0]}', but `data=` does not "
                    f"declare it, so it would not be padded; add '{name}' with '{alike[0]}' to `data=`"
                )
    return f"the model fails on a padded instance: {failure}"


def _inspect(model: Any, example: Values) -> tuple[Site, ...]:
    try:
        sites = program.inspect(model, example)
    except ValueError:
        raise
    except Exception as error:
        shapes = {name: np.shape(value) for name, value in example.items()}
        raise ValueError(f"the model fails on data of shapes {shapes}: {_first_line(error)}") from error
    if not latent_names(sites):
        raise ValueError("the model has no latent sites: there is nothing to infer")
    return sites


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _check_plates(target: Target, axes: Axes) -> str | None:
    """Refuse declarations that the model contradicts; returns why instances must not be padded, if they must not."""
    sizes = target.plate_sizes
    declared = [
        (argument, axis, plate)
        for argument, names in axes.items()
        for axis, plate in enumerate(names)
        if plate is not None
    ]
    for argument, axis, plate in declared:
        if plate not in sizes:
            raise ValueError(
                f"`data=` declares an axis of '{argument}' as the plate '{plate}', but the model has only the plates "
                f"{sorted(sizes)}"
            )
        length = target.data[argument].shape[axis]
        if sizes[plate] != length:
            raise ValueError(f"the plate '{plate}' has size {sizes[plate]} where '{argument}' has {length} elements")
        for site in target.sites:
            if argument in site.arguments and site.axis(plate) is None:
                kind = "observed site" if site.observed else "site"
                return (
                    f"the {kind} '{site.name}' depends on '{argument}' but lies outside the plate '{plate}', so padded "
                    f"elements would count; put it inside numpyro.plate('{plate}', ...)"
                )
    return None


# The blocks -------------------------------------------------------------------------------------------------------------


def _check_cover(sites: tuple[Site, ...], blocks: tuple[Block, ...]) -> None:
    if not blocks:
        raise ValueError("there are no blocks; add a Block(...) for the model's sites")
    named, latents = by_name(sites), latent_names(sites)
    for block in blocks:
        for name in block.sites:
            if name not in named:
                raise ValueError(
                    f"block '{block.label}' names the site '{name}', which the model does not have; its latent sites are "
                    f"{sorted(latents)}"
                )
            if named[name].observed:
                raise ValueError(f"block '{block.label}' names the site '{name}', which is observed")
    covered = {name for block in blocks for name in block.sites}
    if missing := sorted(set(latents) - covered):
        raise ValueError(f"no block updates the sites {missing}; add them to a Block(...)")


def _check_sequences(blocks: tuple[Block, ...], target: Target) -> None:
    model = target.model
    for block in blocks:
        if not isinstance(block, SequenceBlock):
            continue
        what = f"SequenceBlock('{block.label}')"
        if not isinstance(model, StateSpaceModel):
            raise ValueError(f"{what} goes through the steps of a StateSpaceModel; use a Block for other models")
        if block.sites != (model.state,):
            raise ValueError(f"{what} does not name the state of {type(model).__name__}: its state is '{model.state}'")
        if others := sorted(set(touched(target.sites, block.sites)) - {model.state, model.observed}):
            raise ValueError(f"{what}: the sites {others} depend on the states too, outside of the steps; use a Block")
    if isinstance(model, StateSpaceModel):
        for block in blocks:
            if model.state in block.sites and isinstance(block.move, HMC):
                _check_one_support(block, target)


def _check_one_support(block: Block, target: Target) -> None:
    """HMC moves states by one bijection to the real line, so their support must not differ between steps."""
    kinds: list[Any] = []

    def supports(previous: Any) -> Any:
        shared = program.returned(target.model.globals, {})
        later = one_event(target.model.transition(previous, shared)).support
        kinds.append(jax.tree.structure(one_event(target.model.initial(shared)).support) == jax.tree.structure(later))
        return jax.tree.leaves(later)

    state = program.abstract_sites(target.program)[target.model.state].value
    moving = eval_provenance(supports, previous=jax.ShapeDtypeStruct(state.shape[1:], state.dtype))
    if not kinds[0] or (any(moving) and not isinstance(block, SequenceBlock)):
        raise ValueError(
            f"block '{block.label}': HMC needs states whose support is the same at every step; use Metropolis()"
        )


def _finite_part(block: Block, sites: tuple[Site, ...]) -> Block | None:
    """The finite sites of a block that moves by HMC, which are summed out, as a block of their own."""
    named = by_name(sites)
    finite = [name for name in block.sites if named[name].support is not None]
    if not isinstance(block.move, HMC) or isinstance(block, SequenceBlock) or not finite:
        return None
    if len(finite) == len(block.sites):
        raise ValueError(f"block '{block.label}': HMC has no continuous site to move; use Enumerated() as its proposal")
    for name in block.sites:
        if bounding := sorted(named[name].bounded_by & set(finite)):
            raise ValueError(
                f"block '{block.label}': HMC cannot sum out '{bounding[0]}', on which the support of '{name}' depends; "
                f"put '{bounding[0]}' into a block of its own"
            )
    return Block(*finite, proposal=Enumerated())


def _candidate(block: Block, target: Target) -> Partition:
    """The finest split of the block's weight that the plates suggest."""
    sites = by_name(target.sites)
    if isinstance(block.move, HMC):
        discrete = [name for name in block.sites if sites[name].discrete]
        if endless := [n for n in discrete if sites[n].support is None or isinstance(block, SequenceBlock)]:
            raise ValueError(f"block '{block.label}': HMC can neither move the discrete sites {endless} nor sum them out")
        return Partition(target.sites)
    if block.kernel is None:
        raise ValueError(f"block '{block.label}' has no proposal; pass proposal=..., Prior() or Enumerated()")
    endless = [name for name in block.sites if sites[name].support is None]
    if isinstance(block.kernel, Enumerated) and endless:
        raise ValueError(f"block '{block.label}': Enumerated needs finite discrete sites; {endless} are not")
    if isinstance(block, SequenceBlock):
        return Partition(target.sites)
    if block.by:
        return _by_component(block, target)
    factors = [sites[name] for name in touched(target.sites, block.sites)]
    shared = _shared_plates(factors)
    if not shared and not isinstance(block.kernel, Enumerated):
        _say_why_whole(block, [sites[name] for name in block.sites], factors)
    return Partition(target.sites, shared)


def _shared_plates(sites: list[Site]) -> tuple[str, ...]:
    """The plates that all sites lie in, in the order of their axes."""
    return tuple(plate for plate, _ in sites[0].plates if all(site.axis(plate) is not None for site in sites))


def _say_why_whole(block: Block, own: list[Site], factors: list[Site]) -> None:
    """A block that lies in a plate is expected to be weighed by element; say so if something outside prevents it."""
    if not (plates_of_block := _shared_plates(own)):
        return
    plate = plates_of_block[-1]
    outside = next(site.name for site in factors if site.axis(plate) is None)
    warnings.warn(
        f"block '{block.label}': its elements in the plate '{plate}' are weighed together, because '{outside}' depends "
        f"on them from outside the plate; if a discrete site assigns '{outside}' to the elements, name it with by=",
        stacklevel=4,
    )


def _by_component(block: Block, target: Target) -> Partition:
    """The plate of components that the block's sites lie in; other factors are credited through `by`."""
    sites = by_name(target.sites)
    label = f"block '{block.label}': by='{block.by}'"
    by = sites.get(block.by or "")
    if by is None or by.observed or by.support is None or block.by in block.sites:
        raise ValueError(f"{label} must name a finite discrete latent site of another block")
    shared = list(_shared_plates([sites[name] for name in block.sites]))
    if len(shared) != 1:
        raise ValueError(f"{label} needs all sites of the block in one plate of components; they share {shared}")
    size = target.plate_sizes[shared[0]]
    if by.support != tuple(range(size)):
        raise ValueError(f"{label} takes the values {by.support}, which are not the {size} components of '{shared[0]}'")
    for name in touched(target.sites, block.sites):
        routed = sites[name].axis(shared[0]) is None
        if routed and any(sites[name].axis(plate) is None for plate, _ in by.plates):
            raise ValueError(f"{label}: '{name}' depends on the block but lies outside the plates of '{block.by}'")
    return Partition(target.sites, tuple(shared), by)


def _decide(index: int, block: Block, candidate: Partition, findings: Findings) -> Partition:
    """The candidate if elements proved independent; else the block as a whole, or an error where that was relied on."""
    if candidate.whole:
        return candidate
    whole = Partition(candidate.sites)
    culprits = [name for name, independent in findings.independent[index].items() if not independent]
    if culprits:
        described = (
            f"block '{block.label}': the elements of the plate {list(candidate.plates)} are not independent: changing "
            f"one changes the log-probability of '{culprits[0]}' at another"
        )
        if block.by:
            raise ValueError(f"{described}; drop by='{block.by}'")
        if isinstance(block.kernel, Enumerated):
            raise ValueError(f"{described}, so Enumerated would not be exact; use another proposal")
        warnings.warn(f"{described}; the block is weighed as a whole", stacklevel=4)
        return whole
    if not findings.proposal_splits[index]:
        if block.by:
            raise ValueError(
                f"block '{block.label}': by='{block.by}' weighs each component by itself, but the proposal's "
                "log-probabilities do not split over components; give its sites the batch shape of the model's"
            )
        return whole
    return candidate


def _check_enumerable(block: Block, partition: Partition, target: Target) -> None:
    shapes = program.shapes(target.program)
    for name in block.sites:
        if len(shapes[name]) != len(partition.plates):
            raise ValueError(
                f"block '{block.label}': Enumerated needs '{name}' to have one value in each element of a plate that all "
                f"its factors share; it has shape {shapes[name]}, the shared plates are {list(partition.plates)}"
            )


# The proposals ----------------------------------------------------------------------------------------------------------


def _check_first_draws(blocks: tuple[Block, ...], target: Target) -> list[Draw]:
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
    return _checked(draws, blocks, target)


def _check_exchangeable(blocks: tuple[Block, ...], target: Target) -> None:
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


def _updates(blocks: tuple[Block, ...], target: Target) -> list[Draw]:
    """A block's proposal sees everything that is not its own."""
    draws = []
    for index, block in enumerate(blocks):
        if block.proposes:
            others = tuple(name for name in latent_names(target.sites) if name not in block.sites)
            draws.append(Draw(index, block.sites, others, initial=False, step=_step_of(block)))
    return draws


def _is_weighed(block: Block) -> bool:
    """Whether a block's updates are weighed, by choice or by default; what is enumerated is possible by construction."""
    return not isinstance(block.kernel, Enumerated) and (isinstance(block.move, Weigh))


def _with_moves(blocks: tuple[Block, ...], findings: Findings) -> tuple[Block, ...]:
    """Blocks without a chosen move are weighed, unless their weight can be zero, where that is biased."""
    biased = {draw.block for draw, possible in findings.never_impossible.items() if not possible}
    resolved = []
    for index, block in enumerate(blocks):
        if index in biased:
            described = (
                f"block '{block.label}': its proposal can draw values of probability zero under the model, or cannot "
                "draw some that the model can; Weigh() is biased there"
            )
            way_out = "its move is Metropolis() instead" if block.chosen is None else "use move=Metropolis()"
            warnings.warn(f"{described}, so {way_out}", stacklevel=4)
        safe = index in biased and block.chosen is None
        resolved.append(block.with_move(Metropolis()) if safe else block)
    return tuple(resolved)


def _checked(draws: list[Draw], blocks: tuple[Block, ...], target: Target) -> list[Draw]:
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
        raise ValueError(f"{what} fails: {_first_line(error)}") from error
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


def _raise_findings(findings: Findings, blocks: tuple[Block, ...]) -> None:
    for draw, inside in findings.inside_model.items():
        for name in draw.names:
            what = _what(blocks[draw.block], draw.initial)
            if not inside[name]:
                raise ValueError(f"{what} draws values of '{name}' outside the support that the model gives it")
            if not findings.inside_proposal[draw][name]:
                raise ValueError(f"{what} cannot draw values of '{name}' that the model can: its support is too narrow")


def _found_padding(findings: Findings, blocks: tuple[Block, ...]) -> str | None:
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
