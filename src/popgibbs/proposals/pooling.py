"""Neural sufficient statistics of any model: networks over the entries of its factors, pooled by the model's plates.

An entry of a factor is one element of its plates: its value, the data arguments and the latents that lie in the same
plates. An update pools the entries of the factors that contain the block's sites into the elements of the block, as their
log-probabilities are. The first draw, when some of these do not exist yet, pools the entries of observed sites instead,
one plate after another.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from popgibbs._typing import PRNGKey
from popgibbs.model import BlockConditional, Site, by_name, entry_mask
from popgibbs.statistics import pointwise

Features: TypeAlias = tuple[tuple[str, Callable[[Array], Array]], ...]
"""By site or argument, what networks see instead of its values."""

MakeNetwork: TypeAlias = Callable[[int, int, PRNGKey], Callable[[Array], Array]]
"""From the numbers of inputs and outputs and a key to a network of one vector."""

_LARGEST = 30.0  # standardised inputs beyond it are cut off, because networks have not seen them


class Scale(eqx.Module):
    """The centre and spread of a network's inputs, which are measured once and not trained."""

    centre: Array
    spread: Array

    def __call__(self, inputs: Float[Array, "*batch column"]) -> Float[Array, "*batch column"]:
        """The inputs on a common scale, linear in the bulk and logarithmic in the tails."""
        scaled = (inputs - stop_gradient(self.centre)) / stop_gradient(self.spread)
        return jnp.clip(1.5 * jnp.sign(scaled) * jnp.log1p(jnp.abs(scaled)), -_LARGEST, _LARGEST)


def measured(samples: np.ndarray) -> Scale:
    """The scale of samples whose last axis are the inputs; NaN is left out."""
    flat = samples.reshape(int(np.prod(samples.shape[:-1])), samples.shape[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of columns that hold nothing but NaN
        centre = np.nan_to_num(np.nanmedian(flat, axis=0))
        spread = np.nan_to_num(np.nanmean(np.minimum(np.abs(flat - centre), 1e6), axis=0))
    return Scale(jnp.asarray(centre), jnp.asarray(np.where(spread > 1e-6, spread, 1.0)))


def network(num_inputs: int, num_outputs: int, hidden: int, depth: int, key: PRNGKey) -> eqx.nn.MLP:
    return eqx.nn.MLP(num_inputs, num_outputs, hidden, depth, activation=jax.nn.silu, key=key)


class Entries(eqx.Module):
    """A network of the entries of a factor."""

    scale: Scale
    network: Any  # of one vector
    features: Features = eqx.field(static=True, default=())

    def __call__(self, conditional: BlockConditional, name: str) -> Float[Array, "*batch statistic"]:
        return through(self.network, self.scale(columns(conditional, name, self.features)))


def as_features(given: Mapping[str, Callable[[Array], Array]] | Features) -> Features:
    """Functions by name, as a value that can be compared."""
    return tuple(dict(given).items())


def check_features(features: Features, conditional: BlockConditional) -> None:
    """Check that features belong to something that the model has."""
    known = [*by_name(conditional.target.sites), *conditional.target.data.values]
    if unknown := [name for name, _ in features if name not in known]:
        raise ValueError(f"features= names '{unknown[0]}', which is neither a site nor an argument; there are {known}")


def through(network: Any, values: Float[Array, "*batch column"]) -> Float[Array, "*batch out"]:
    """A network applied along the last axis."""
    return pointwise(network, values.reshape(-1, values.shape[-1])).reshape(*values.shape[:-1], -1)


def columns(conditional: BlockConditional, name: str, features: Features = ()) -> Float[Array, "*batch column"]:
    """The inputs of every entry of a factor."""
    sites, target = by_name(conditional.target.sites), conditional.target
    site = sites[name]
    shape = entry_shape(conditional, name)
    functions, found = dict(features), []

    def add(of: str, value: Array) -> None:
        seen = jnp.asarray(functions[of](value)) if of in functions else value
        if seen.shape[: len(shape)] != shape:
            raise ValueError(
                f"features= of '{of}' have shape {seen.shape}; the first axes must be those of its plates, {shape}"
            )
        found.append(seen.reshape(*shape, -1))

    if name not in conditional.names:
        add(name, _value(conditional, name))
    for argument in sorted(site.arguments):
        value = jnp.asarray(target.data[argument], float)
        if value.ndim >= len(shape) and value.shape[: len(shape)] == shape and not _is_value(conditional, name, value):
            add(argument, value)
    for parent in sorted(site.parents & set(conditional.given)):
        laid = _laid(conditional, sites[parent], site, shape)
        if laid is not None:
            found.append(laid)
    return jnp.concatenate([part.astype(float) for part in found], axis=-1) if found else jnp.zeros((*shape, 0))


def entry_shape(conditional: BlockConditional, name: str) -> tuple[int, ...]:
    """The batch shape of a site's log-probabilities."""
    site = by_name(conditional.target.sites)[name]
    value = _value(conditional, name)
    return value.shape[: value.ndim - site.event_dim]


def _value(conditional: BlockConditional, name: str) -> Array:
    if name in conditional.given:
        return conditional.given[name]
    return conditional.target.observed[name]


def _is_value(conditional: BlockConditional, name: str, argument: Array) -> bool:
    """Whether an argument is what the site observes, so that it need not be an input twice."""
    site = by_name(conditional.target.sites)[name]
    return site.observed and conditional.target.observed[name].shape == argument.shape and len(site.arguments) == 1


def _laid(conditional: BlockConditional, parent: Site, site: Site, shape: tuple[int, ...]) -> Array | None:
    """A parent's values along the entries of a factor; None if it has plates that the factor does not have."""
    value = conditional.given[parent.name]
    by = conditional.partition.assigned_by
    if by is not None and parent.name == by.name:
        return None  # a label means nothing; the entries are routed by it instead
    batch = value.shape[: value.ndim - parent.event_dim]
    flat = value.reshape(*batch, -1)
    outside = [plate for plate, _ in parent.plates if site.axis(plate) is None]
    if outside:
        if by is None or tuple(outside) != conditional.partition.plates or len(batch) != 1:
            return None
        flat = flat[conditional.partition.components(conditional.given)]
        return jnp.broadcast_to(flat, (*shape, flat.shape[-1])) if flat.shape[:-1] == shape else None
    return jnp.broadcast_to(flat, (*shape, flat.shape[-1]))


class ChildStatistics(eqx.Module):
    """Pooled statistics of the entries of all factors that contain the block's sites."""

    networks: dict[str, Entries]

    def __call__(self, conditional: BlockConditional) -> Float[Array, "element statistic"]:
        pooled = [_pooled(conditional, name, network) for name, network in self.networks.items()]
        return jnp.concatenate(pooled, axis=-1) if pooled else jnp.zeros((conditional.real.shape[0], 0))


def _pooled(conditional: BlockConditional, name: str, network: Entries) -> Float[Array, "element statistic"]:
    def summed(entries: Array) -> Array:
        return conditional.reduce(conditional.mask({name: entries}))

    statistics = network(conditional, name)
    total = jax.vmap(summed, in_axes=-1, out_axes=-1)(statistics)
    count = summed(jnp.ones(statistics.shape[:-1]))[:, None]
    return jnp.concatenate([total / jnp.maximum(count, 1.0), jnp.log1p(count)], axis=-1)


class DataStatistics(eqx.Module):
    """Pooled statistics of observed sites, for a first draw: one network per plate that is pooled."""

    networks: dict[str, tuple[Entries, list[eqx.nn.MLP]]]

    def __call__(self, conditional: BlockConditional) -> Float[Array, "element statistic"]:
        parts = [self._pooled(conditional, name, networks) for name, networks in self.networks.items()]
        return jnp.concatenate(parts, axis=-1) if parts else jnp.zeros((conditional.real.shape[0], 0))

    def _pooled(self, conditional: BlockConditional, name: str, networks: tuple[Entries, list[eqx.nn.MLP]]) -> Array:
        site = by_name(conditional.target.sites)[name]
        statistics = networks[0](conditional, name)
        axes = dict(site.plates)  # of what is left, counted from the right of the batch shape
        weights = entry_mask(conditional.target, name, statistics.shape[:-1])
        for plate, network in zip(pooling_order(conditional, site), [*networks[1], None], strict=True):
            axis = axes.pop(plate) + statistics.ndim - 1
            count = jnp.sum(weights, axis=axis, keepdims=True)
            mean = jnp.sum(statistics * weights[..., None], axis=axis, keepdims=True) / jnp.maximum(count, 1.0)[..., None]
            statistics = jnp.concatenate([mean, jnp.log1p(count)[..., None]], axis=-1)
            weights = jnp.where(count > 0, 1.0, 0.0)
            if network is not None:
                statistics = through(network, statistics)
        return _by_element(conditional, site, statistics)


def pooling_order(conditional: BlockConditional, site: Site) -> list[str]:
    """The plates of a site that are pooled for the block's elements, those with the fewest latents first."""
    kept = set(conditional.partition.plates)

    def num_latents(plate: str) -> int:
        return sum(other.axis(plate) is not None for other in conditional.target.sites if not other.observed)

    return sorted((plate for plate, _ in site.plates if plate not in kept), key=num_latents)


def _by_element(conditional: BlockConditional, site: Site, statistics: Array) -> Float[Array, "element statistic"]:
    """Statistics whose pooled axes have size one, in the order of the block's elements."""
    partition, sizes = conditional.partition, conditional.target.plate_sizes
    axes = [site.axis(plate) for plate in partition.plates]
    present = [axis + statistics.ndim - 1 for axis in axes if axis is not None]
    moved = jnp.moveaxis(statistics, present, list(range(len(present))))
    moved = moved.reshape(*moved.shape[: len(present)], moved.shape[-1])
    shape = partition.shape(sizes)
    laid = iter(range(len(present)))
    expanded = moved.reshape(*(moved.shape[next(laid)] if axis is not None else 1 for axis in axes), moved.shape[-1])
    return jnp.broadcast_to(expanded, (*shape, moved.shape[-1])).reshape(-1, moved.shape[-1])


def given_columns(conditional: BlockConditional, names: tuple[str, ...]) -> Float[Array, "element column"]:
    """The values of latents that lie in no other plates than the elements, in the order of the elements."""
    sites = by_name(conditional.target.sites)
    found = []
    for name in names:
        site, value = sites[name], conditional.given[name].astype(float)
        batch = value.shape[: value.ndim - site.event_dim]
        found.append(_by_element(conditional, site, value.reshape(*batch, -1)))
    return jnp.concatenate(found, axis=-1) if found else jnp.zeros((conditional.real.shape[0], 0))


def visible(conditional: BlockConditional) -> tuple[str, ...]:
    """The given latents that lie in no other plates than the block's elements."""
    plates, sites = set(conditional.partition.plates), by_name(conditional.target.sites)
    by = conditional.partition.assigned_by
    return tuple(
        name for name in conditional.given if set(dict(sites[name].plates)) <= plates and (by is None or name != by.name)
    )
