"""Rules about exchangeable components, whose first draw is shuffled."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from popgibbs._compiling import Program, jit_once
from popgibbs._random import key_for_checks
from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.building.probes import proved
from popgibbs.model import BlockConditional, Partition, Target, abstract_sites, by_name, draw
from popgibbs.proposals import Kernel, Shuffled, key_for, sites_at

_NUM_PROBES = 4


def check_shuffled(
    block: str, kernel: Kernel, plate: str, target: Target, names: tuple[str, ...], drawn: tuple[str, ...]
) -> None:
    """Raise if a first draw of the named sites, given those already drawn, cannot be shuffled."""
    shuffled, sites, sizes = Shuffled(kernel, plate), by_name(target.sites), target.plate_sizes
    what = f"block '{block}': exchangeable='{plate}'"
    if plate not in sizes:
        raise ValueError(f"{what} is not a plate of the model; its plates are {sorted(sizes)}")
    if plate in target.data.mask:
        raise ValueError(f"{what} is a plate of the data, whose elements differ; name a plate of components")
    if outside := [name for name in names if sites[name].axis(plate) is None]:
        raise ValueError(
            f"{what} shuffles all sites of the block, but {outside} are not in it; move them to another block"
        )
    if before := [name for name in drawn if sites[name].axis(plate) is not None]:
        raise ValueError(f"{what}, but an earlier block draws {before} of that plate; set exchangeable on that block")
    if kernel.from_model:
        kind = type(kernel).__name__
        raise ValueError(f"{what}, but {kind} draws all components alike, in every labelling; remove exchangeable")
    modelled = abstract_sites(target.program)
    given = {name: modelled[name].value for name in drawn}
    proposed = sites_at(lambda given: (kernel, _first(target, names, given)), given)
    for name in names:
        found, wanted = proposed[name].batch_shape, modelled[name].batch_shape
        if found is not None and found != wanted:
            raise ValueError(f"{what}: the first draw of '{name}' has batch shape {found}; give it the model's, {wanted}")
    values = {name: jnp.zeros(modelled[name].value.shape, modelled[name].value.dtype) for name in (*drawn, *names)}
    if not (_provably_splits(shuffled, target, names, drawn, values) or _splits(shuffled, target, names, drawn)):
        raise ValueError(
            f"{what}, but in the first draw of {list(names)} the log-probability of a component changes with the values "
            "of others; draw components independently, given data and randomness inside the proposal"
        )


def _first(target: Target, names: tuple[str, ...], given: Values) -> BlockConditional:
    return BlockConditional(target, Partition(target.sites), names=names, given=given, initial=True)


def _provably_splits(
    shuffled: Shuffled, target: Target, names: tuple[str, ...], drawn: tuple[str, ...], values: Values
) -> bool:
    """Whether, by the program of the proposal, the log-probability of a component depends on its own value alone."""
    first = shuffled.by_component(_first(target, names, {name: values[name] for name in drawn}))

    def log_q(values: Values) -> Values:
        return shuffled.kernel.bind(jax.random.key(0), first).log_probs(values) or {}

    return proved(first, log_q, {name: values[name] for name in names}) == set(names)


def _splits(shuffled: Shuffled, target: Target, names: tuple[str, ...], drawn: tuple[str, ...]) -> bool:
    """Whether changing one component changes its own log-probability only, at a few states of the model."""
    return bool(_splits_at_states(shuffled, target, names, drawn, jax.random.split(key_for_checks(21), _NUM_PROBES)))


@partial(Program, compile=jit_once)
def _splits_at_states(
    shuffled: Shuffled, target: Target, names: tuple[str, ...], drawn: tuple[str, ...], keys: Array
) -> Array:
    def at_state(key: PRNGKey) -> Array:
        key_old, key_new, key_score = jax.random.split(key, 3)
        old, new = draw(target.program, key_old), draw(target.program, key_new)
        first = shuffled.by_component(_first(target, names, {name: old[name] for name in drawn}))
        sizes = target.plate_sizes
        places = jnp.arange(sizes[shuffled.plate])

        def with_new(place: Array) -> Elements:
            here = {name: first.partition.spread_values(places == place, name, sizes) for name in names}
            mixed = {name: jnp.where(here[name], new[name], old[name]) for name in names}
            return shuffled.kernel.bind(key_for(shuffled.kernel, key_score), first).score(mixed)

        # The unchanged state runs through the same code (no place has the number -1), so that rounding is the same.
        found = jax.lax.map(with_new, jnp.asarray([-1, *range(places.size)]))
        same = jnp.isclose(found[1:], found[:1], rtol=1e-4, atol=1e-4, equal_nan=True)
        return jnp.all(same | jnp.eye(places.size, dtype=bool))

    return jnp.all(jax.vmap(at_state)(keys))
