"""The continuous sites of a block as real numbers: one vector per element of the block."""

from collections.abc import Mapping
from math import prod
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro.distributions.transforms import IdentityTransform, IndependentTransform, biject_to

from popgibbs._typing import Elements, Values
from popgibbs.model.conditionals import BlockConditional
from popgibbs.model.program import centre_and_scale, typical_sites
from popgibbs.model.target import by_name

_FARTHEST = 80.0  # from zero on the real line, of sites that are mapped: e⁸⁰ and e⁻⁸⁰ are numbers, e⁹⁰ is infinite


class Coordinates:
    """Positions (element, axis) of the block's sites, mapped to the real line and measured in units of their prior.

    Position 0 is the centre of the prior given its parents, and 1 is one prior scale away from it. Sites that have not
    been drawn are at their own centres. Nothing here depends on the block's own values. `bijections` replace those that
    NumPyro has for the sites' supports.
    """

    def __init__(self, conditional: BlockConditional, bijections: Mapping[str, Any] | None = None):
        self.conditional, given = conditional, bijections or {}
        if unknown := sorted(set(given) - set(conditional.names)):
            raise ValueError(f"bijections= names '{unknown[0]}'; the sites of the block are {list(conditional.names)}")
        sites, partition = by_name(conditional.target.sites), conditional.partition
        traced = typical_sites(conditional.modelled, conditional.given)
        self._event_dims = {name: sites[name].event_dim for name in conditional.names}
        self._bijections: dict[str, Any] = {}
        self._is_mapped: dict[str, bool] = {}
        self._centres: Values = {}
        self._scales: Values = {}
        self._axes: dict[str, list[int]] = {}  # of the elements' plates, in positions of a site
        for name in conditional.names:
            distribution = traced[name]["fn"]
            bijection = self._bijections[name] = given.get(name) or biject_to(distribution.support)
            self._is_mapped[name] = not _is_identity(bijection)
            self._centres[name], self._scales[name] = centre_and_scale(distribution, bijection)
            event_dim = self._centres[name].ndim - len(distribution.batch_shape)
            plates = [sites[name].axis(plate) for plate in partition.plates]
            self._axes[name] = [axis - event_dim for axis in plates if axis is not None]
        self.num_elements = prod(partition.shape(conditional.target.plate_sizes))
        self.size = self._flat(self._centres).shape[1]

    def values(self, position: Float[Array, "element axis"]) -> Values:
        """The values of the sites at a position."""
        return {name: self._bijections[name](real) for name, real in self._reals(position).items()}

    def position(self, values: Values) -> Float[Array, "element axis"]:
        """The position of the sites' values."""
        reals = {name: self._bijections[name].inv(values[name]) for name in self._centres}
        return self._flat({name: (reals[name] - self._centres[name]) / self._scales[name] for name in reals})

    def log_volume(self, position: Float[Array, "element axis"]) -> Elements:
        """log |∂ values / ∂ position| of each element."""
        volumes = {}
        for name, real in self._reals(position).items():
            bijection = self._bijections[name]
            batch_dim = bijection(real).ndim - self._event_dims[name]
            volume = jnp.asarray(bijection.log_abs_det_jacobian(real, bijection(real)))
            volumes[name] = _sum_events(volume, batch_dim) + _sum_events(jnp.log(self._scales[name]), batch_dim)
        return self.conditional.reduce_proposed(volumes)

    def log_density(self, position: Float[Array, "element axis"]) -> Elements:
        """The block's factors of each element as a density of positions, up to a constant."""
        conditional = self.conditional
        return conditional.reduce(conditional.log_probs(self.values(position))) + self.log_volume(position)

    def _reals(self, position: Float[Array, "element axis"]) -> Values:
        """Positions as one array per site, on the real line."""
        reals, begin = {}, 0
        for name, centre in self._centres.items():
            axes = self._axes[name]
            places = list(range(len(axes)))
            moved = jnp.moveaxis(centre, axes, places)
            size = centre.size // self.num_elements
            part = position[:, begin : begin + size].reshape(moved.shape)
            real = centre + self._scales[name] * jnp.moveaxis(part, places, axes)
            reals[name] = jnp.clip(real, -_FARTHEST, _FARTHEST) if self._is_mapped[name] else real
            begin += size
        return reals

    def _flat(self, reals: Values) -> Float[Array, "element axis"]:
        def by_element(name: str) -> Array:
            axes = self._axes[name]
            return jnp.moveaxis(reals[name], axes, list(range(len(axes)))).reshape(self.num_elements, -1)

        return jnp.concatenate([by_element(name) for name in self._centres], axis=1)


def _is_identity(bijection: Any) -> bool:
    while isinstance(bijection, IndependentTransform):
        bijection = bijection.base_transform
    return isinstance(bijection, IdentityTransform)


def _sum_events(values: Array, batch_dim: int) -> Array:
    return jnp.sum(values, axis=tuple(range(batch_dim, values.ndim)))
