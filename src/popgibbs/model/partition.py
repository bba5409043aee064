"""How the weight of a block splits into elements: v = Π_e v_e.

There are three cases, which all other code treats alike: the block as a whole (one element); the elements of plates that
all factors of the block share (points); the components of a plate, to which other factors are credited through a site
that names the component (clusters, by assignment).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from popgibbs._typing import Elements, LogProbs, Values
from popgibbs.model.program import Site


@dataclass(frozen=True)
class Partition:
    """Which element of a block each entry of a factor's log-probabilities belongs to."""

    sites: tuple[Site, ...]  # every site of the model
    plates: tuple[str, ...] = ()  # whose elements have their own weights; empty: the block as a whole
    assigned_by: Site | None = None  # names the component of each entry of the factors outside `plates`

    @property
    def whole(self) -> bool:
        return not self.plates

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(sizes[plate] for plate in self.plates)

    def _site(self, name: str) -> Site:
        return next(site for site in self.sites if site.name == name)

    def _axes(self, name: str) -> tuple[int, ...] | None:
        """The axes of `plates` in a site's log-probabilities; None if `assigned_by` routes the site."""
        axes = tuple(self._site(name).axis(plate) for plate in self.plates)
        return None if None in axes else axes  # pyright: ignore[reportReturnType]

    def reduce(self, log_probs: LogProbs, sizes: Mapping[str, int], latents: Values) -> Elements:
        """Sum of the log-probabilities of each element."""
        shape = self.shape(sizes)
        total = jnp.zeros(shape)
        for name, log_prob in log_probs.items():
            axes = self._axes(name)
            total += _sum_others(log_prob, axes) if axes is not None else self._route(name, log_prob, shape, latents)
        return total.reshape(-1)

    def spread(
        self, elements: Shaped[Array, " element"], name: str, sizes: Mapping[str, int], latents: Values
    ) -> Shaped[Array, "..."]:
        """Each element's number broadcast to a factor's log-probabilities: the transpose of `reduce`."""
        elements = elements.reshape(self.shape(sizes))
        axes = self._axes(name)
        if axes is None:
            assert self.assigned_by is not None
            routed = elements[jnp.clip(self.components(latents), 0, elements.shape[0] - 1)]
            return _lay(routed, self._assigned_axes(name))
        return _lay(elements, axes)

    def spread_values(
        self, elements: Shaped[Array, " element"], name: str, sizes: Mapping[str, int]
    ) -> Shaped[Array, "..."]:
        """Each element's number broadcast to the *value* of a block's site, whose event axes come last."""
        laid = self.spread(elements, name, sizes, {})
        return laid.reshape(laid.shape + (1,) * self._site(name).event_dim)

    def components(self, latents: Values) -> Int[Array, "..."]:
        """The component of each entry, with the plates of `assigned_by` as its axes."""
        assert self.assigned_by is not None
        return _sum_others(latents[self.assigned_by.name], tuple(axis for _, axis in self.assigned_by.plates))

    def _assigned_axes(self, name: str) -> tuple[int, ...]:
        """The axes of the plates of `assigned_by` in another site's log-probabilities."""
        assert self.assigned_by is not None
        return tuple(self._site(name).axis(plate) for plate, _ in self.assigned_by.plates)  # pyright: ignore[reportReturnType]

    def _route(
        self, name: str, log_prob: Float[Array, "..."], shape: tuple[int, ...], latents: Values
    ) -> Float[Array, " component"]:
        credited = _sum_others(log_prob, self._assigned_axes(name))
        component = self.components(latents)[..., None] == jnp.arange(prod(shape))
        # A comparison rather than a segment sum: there are few components, and scatters are slow. `where` rather than a
        # product, so that a log-probability of -inf does not turn other components into NaN.
        return jnp.sum(jnp.where(component, credited[..., None], 0.0), axis=tuple(range(credited.ndim)))


def shared_plates(sites: Sequence[Site]) -> tuple[str, ...]:
    """The plates that contain all sites, in the order of their axes."""
    return tuple(plate for plate, _ in sites[0].plates if all(site.axis(plate) is not None for site in sites))


def _sum_others(log_prob: Shaped[Array, "..."], axes: tuple[int, ...]) -> Shaped[Array, "..."]:
    """Sum over all axes but the named ones, which come out in their given order."""
    kept = [axis + log_prob.ndim for axis in axes]
    others = tuple(axis for axis in range(log_prob.ndim) if axis not in kept)
    summed = jnp.sum(log_prob, axis=others)
    order = sorted(range(len(kept)), key=lambda i: kept[i])
    return jnp.transpose(summed, [order.index(i) for i in range(len(kept))])


def _lay(elements: Shaped[Array, "..."], axes: tuple[int, ...]) -> Shaped[Array, "..."]:
    """Reshape an array so that its axes are at the given places, counted from the right, among axes of size one."""
    if not axes:
        return elements
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    shape = [1] * -min(axes)
    for i in order:
        shape[axes[i]] = elements.shape[i]
    return jnp.transpose(elements, order).reshape(shape)
