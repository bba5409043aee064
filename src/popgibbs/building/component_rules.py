"""Finding the components that a model does not distinguish: candidates from its plates, checked by renaming them."""

from collections.abc import Sequence
from functools import partial
from itertools import islice, product

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from popgibbs._compiling import Program, jit_once
from popgibbs._random import key_for_checks
from popgibbs._typing import LogProbs, Values
from popgibbs.model import (
    Components,
    Exchangeable,
    Site,
    Target,
    abstract_sites,
    by_name,
    draw,
)

_NUM_STATES = 4
_MOST_TRIED = 16  # choices of the axes that run over components
_TOLERANCE = 1e-4


def components_of(declared: Sequence[Exchangeable] | None, target: Target) -> tuple[Components, ...]:
    """The exchangeable components: those that are declared, or else those that are found."""
    if declared is not None:
        return tuple(_declared(declaration, target) for declaration in declared)
    found = [_found(plate, target) for plate in target.plate_sizes if plate not in target.data.mask]
    return tuple(components for components in found if components is not None)


def _found(plate: str, target: Target) -> Components | None:
    """The elements of a plate, if labels assign something to them and the model does not distinguish them."""
    size, sites = target.plate_sizes[plate], target.sites
    own = [site for site in sites if site.axis(plate) is not None]
    names = {site.name for site in own}
    labels = [
        site
        for site in sites
        if site.support == tuple(range(size))
        and site.name not in names
        and any(site.name in other.parents and other.parents & names for other in sites)
    ]
    if size < 2 or not labels or any(site.observed for site in own):
        return None
    above = frozenset().union(*(site.parents for site in (*own, *labels))) - names
    weights = [site for site in sites if site.name in above and _last_is(size, site, target)]
    options = [*(_axes(site, plate, size, target) for site in own), *([(), (-1,)] for _ in weights)]
    named = [site.name for site in (*own, *weights)]
    return _symmetric(named, options, plate, size, tuple(site.name for site in labels), target)


def _declared(declaration: Exchangeable, target: Target) -> Components:
    sites, sizes = by_name(target.sites), target.plate_sizes
    what = f"exchangeable{declaration.sites}"
    for name in (*declaration.sites, *declaration.labels):
        if name not in sites or sites[name].observed:
            raise ValueError(f"{what} names '{name}', which is not a latent site of the model")
    supports = {sites[name].support for name in declaration.labels}
    for name in declaration.labels:
        support = sites[name].support
        if len(supports) > 1 or support is None or support != tuple(range(len(support))):
            raise ValueError(f"{what}: the label '{name}' takes the values {support}, which do not number components")
    own = [sites[name] for name in declaration.sites]
    number = len(next(iter(supports)) or ()) if supports else None
    plates = [
        plate
        for plate in sizes
        if plate not in target.data.mask
        and number in (None, sizes[plate])
        and any(site.axis(plate) is not None for site in own)
        and all(sites[name].axis(plate) is None for name in declaration.labels)
    ]
    if len(plates) > 1:
        raise ValueError(f"{what}: the components could be those of any of the plates {plates}; name their labels")
    plate = plates[0] if plates else None
    if number is None and plate is None:
        raise ValueError(f"{what} needs labels, or sites in a plate of components")
    size = sizes[plate] if plate is not None else number
    assert size is not None
    inside = [site.name for site in target.sites if plate and site.axis(plate) is not None]
    if missing := [name for name in inside if name not in declaration.sites]:
        raise ValueError(f"{what}: '{missing[0]}' is in the plate '{plate}' of the components too; name it as well")
    for site in own:
        if (plate is None or site.axis(plate) is None) and not _last_is(size, site, target):
            raise ValueError(f"{what}: the last axis of '{site.name}' does not run over the {size} components")
    options = [_axes(site, plate, size, target) for site in own]
    found = _symmetric(list(declaration.sites), options, plate, size, declaration.labels, target)
    if found is None:
        raise ValueError(
            f"{what}, but renaming the components changes the model's log joint; name all sites with values of "
            "components and all their labels, or leave the declaration out"
        )
    return found


def _axes(site: Site, plate: str | None, size: int, target: Target) -> list[tuple[int, ...]]:
    """The axes of a site's value that may run over components."""
    axis = None if plate is None else site.axis(plate)
    if axis is None:
        return [(-1,)]
    by_plate = axis - site.event_dim
    return [(by_plate,), (by_plate, -1)] if _last_is(size, site, target) else [(by_plate,)]


def _last_is(size: int, site: Site, target: Target) -> bool:
    """Whether the last axis of a site's value is an event axis of that size."""
    return site.event_dim > 0 and abstract_sites(target.program)[site.name].value.shape[-1] == size


def _symmetric(
    names: list[str],
    options: list[list[tuple[int, ...]]],
    plate: str | None,
    size: int,
    labels: tuple[str, ...],
    target: Target,
) -> Components | None:
    """The choice of the fewest axes under which the model is symmetric, if there is one."""
    choices = sorted(islice(product(*options), _MOST_TRIED), key=lambda choice: sum(map(len, choice)))
    states = _states(target, jax.random.split(key_for_checks(22), _NUM_STATES))
    for choice in choices:
        axes = tuple((name, axes) for name, axes in zip(names, choice, strict=True) if axes)
        components = Components(size, plate, axes, labels)
        if bool(_is_symmetric(target, components, states)):
            return components
    return None


@partial(Program, compile=jit_once)
def _states(target: Target, keys: Array) -> Values:
    """A few states drawn from the model."""
    return jax.vmap(lambda key: draw(target.program, key))(keys)


@partial(Program, compile=jit_once)
def _is_symmetric(target: Target, components: Components, states: Values) -> Array:
    """Whether renaming components permutes the log-probabilities of these states; outside a support they are -inf."""
    places = np.arange(components.size)
    # The state itself, and two permutations that generate all others.
    orders = jnp.array([places, np.roll(places, 1), [1, 0, *places[2:]]])
    sites = by_name(target.sites)

    def renamed(latents: Values, order: Array) -> LogProbs:
        """The log-probabilities of the renamed state with their components back in the old order."""
        log_probs = target.log_probs(components.reordered(latents, order))
        for name in log_probs:
            if components.plate is not None and (axis := sites[name].axis(components.plate)) is not None:
                log_probs[name] = jnp.take(log_probs[name], jnp.argsort(order), axis=axis)
        return log_probs

    def at_state(latents: Values) -> tuple[Array, Array]:
        log_probs = jax.vmap(lambda order: renamed(latents, order))(orders)
        same = [jnp.allclose(values[1:], values[:1], rtol=_TOLERANCE, atol=_TOLERANCE) for values in log_probs.values()]
        finite = [jnp.all(jnp.isfinite(values[0])) for values in log_probs.values()]
        return jnp.all(jnp.stack(same)), jnp.all(jnp.stack(finite))

    same, finite = jax.vmap(at_state)(states)
    return jnp.all(same | ~finite) & jnp.any(finite)
