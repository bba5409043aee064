"""All joint values of the finite sites of an element, as numbers: each entry of a site is a digit."""

from math import prod

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from popgibbs._typing import Values
from popgibbs.model.conditionals import Conditional


class JointValues:
    """The joint values that the named sites can have in one element of a block."""

    def __init__(self, conditional: Conditional, names: tuple[str, ...]):
        self._conditional = conditional
        found = conditional.finite
        self._supports = {name: found[name].values for name in names}
        places = {name: places_in_element(conditional, name, found[name].shape) for name in names}
        self._weights: dict[str, np.ndarray] = {}
        self.count = 1
        for name, support in reversed(self._supports.items()):
            self._weights[name] = self.count * len(support) ** places[name]
            self.count *= len(support) ** places[name].size

    def at(self, number: Int[Array, " element"]) -> Values:
        """The values of the sites where each element has the joint value of a number."""
        return {name: self._digit(self._conditional.lay(number, name), name) for name in self._supports}

    def number(self, values: Values) -> Float[Array, " element"]:
        """The number of each element's joint value; NaN if one of its entries has a value outside of its support."""
        parts = {}
        for name, support in self._supports.items():
            matches = values[name][..., None] == np.asarray(support)
            digit = jnp.where(jnp.any(matches, axis=-1), jnp.argmax(matches, axis=-1), jnp.nan)
            parts[name] = digit * self._weights[name]
        return self._conditional.reduce(parts)

    def _digit(self, number: Array, name: str) -> Array:
        support, weight = self._supports[name], self._weights[name]
        if (weight > 1).any():
            number //= weight
        if self.count > len(support):
            number %= len(support)
        return number if support == tuple(range(len(support))) else jnp.asarray(support)[number]


def places_in_element(conditional: Conditional, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The place of each entry of a site among those of its element, in an array that broadcasts to the site's value."""
    num_elements = conditional.real.shape[0]
    laid = conditional.lay(jnp.zeros(num_elements, int), name).shape
    of_elements = (1,) * (len(shape) - len(laid)) + laid
    inside = [1 if number > 1 else size for size, number in zip(shape, of_elements, strict=True)]
    return np.arange(prod(inside)).reshape(inside)
