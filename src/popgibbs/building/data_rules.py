"""Rules about a model and its data, whose messages name the site or the argument and the way out."""

import inspect
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from popgibbs._typing import Values
from popgibbs.building.messages import first_line
from popgibbs.building.probes import padded_by_one
from popgibbs.data import Axes, complete, pad, plates
from popgibbs.model import (
    Site,
    Target,
    latent_names,
    program,
)
from popgibbs.smc import Block

MIN_SIZE = 4  # of a declared plate in the checks; fewer elements do not show dependence


def check_shared_arrays(model: Any, blocks: tuple[Block, ...]) -> None:
    owners: dict[int, str] = {}
    for name, tree in [("the model", model), *((f"block '{block.name}'", block.kernel) for block in blocks)]:
        for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array)):
            if id(leaf) in owners:
                raise ValueError(
                    f"{name} holds an array that {owners[id(leaf)]} holds too, so it would be trained twice; build a "
                    "second network, or put both uses into one module (as __call__ and initial)"
                )
            owners[id(leaf)] = name


def check_signature(model: Any, example: Mapping[str, Any]) -> None:
    try:
        inspect.signature(model).bind(**example)
    except TypeError as error:
        raise ValueError(f"the model does not accept the data {sorted(example)}: {error}") from None


def enlarged(model: Any, example: Values, axes: Axes) -> tuple[Values, str | None]:
    """The example with at least MIN_SIZE elements in every declared plate, by repetition, or why that fails."""
    sizes = {plate: mask.shape[0] for plate, mask in complete(example, axes).mask.items()}
    enlarged = pad(example, axes, {plate: max(size, MIN_SIZE) for plate, size in sizes.items()})
    if all(size >= MIN_SIZE for size in sizes.values()) or not _fails(model, enlarged) or _fails(model, example):
        return enlarged, None
    return example, _why_not_padded(_fails(model, enlarged), example, axes, sizes)


def _fails(model: Any, values: Values) -> str | None:
    """Why a model does not run on an instance."""
    try:
        inputs = {name: jnp.asarray(value) for name, value in values.items()}
        jax.eval_shape(lambda: program.evaluate(lambda: model(**inputs), jax.random.key(0), {}))
    except Exception as error:
        return first_line(error)
    return None


def fails_padded(target: Target, axes: Axes) -> str | None:
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


def sites_of(model: Any, example: Values) -> tuple[Site, ...]:
    try:
        sites = program.inspect(model, example)
    except ValueError:
        raise
    except Exception as error:
        shapes = {name: np.shape(value) for name, value in example.items()}
        raise ValueError(f"the model fails on data of shapes {shapes}: {first_line(error)}") from error
    if not latent_names(sites):
        raise ValueError("the model has no latent sites, so there is nothing to infer")
    return sites


def check_plates(target: Target, axes: Axes) -> str | None:
    """Refuse declarations that the model contradicts; returns why instances cannot be padded, or None."""
    sizes = target.plate_sizes
    declared = [
        (argument, axis, plate)
        for argument, names in axes.items()
        for axis, plate in enumerate(names)
        if plate is not None
    ]
    cannot_pad = None
    for argument, axis, plate in declared:
        if plate not in sizes:
            raise ValueError(
                f"`data=` declares an axis of '{argument}' as the plate '{plate}', but the model has only the plates "
                f"{sorted(sizes)}"
            )
        length = target.data[argument].shape[axis]
        if sizes[plate] != length:
            raise ValueError(f"the plate '{plate}' has size {sizes[plate]}, but '{argument}' has {length} elements")
        for site in target.sites:
            if argument in site.arguments and site.axis(plate) is None:
                kind = "observed site" if site.observed else "site"
                cannot_pad = cannot_pad or (
                    f"the {kind} '{site.name}' depends on '{argument}' but is outside the plate '{plate}', so padded "
                    f"elements would count; put it inside numpyro.plate('{plate}', ...)"
                )
    return cannot_pad
