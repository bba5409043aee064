"""Finite values one after another, each from its exact conditional."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from popgibbs._random import unrolled
from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import Conditional, Particle, places_in_element
from popgibbs.moves.base import Move, MoveInfo, MoveKeys, replaced
from popgibbs.proposals import BoundKernel


class Gibbs(Move):
    """Draw each value of the block's finite sites in turn from its exact conditional, given all others.

    For sites of a plate that depend on each other given the rest, such as the inclusion of variables in a regression or
    the spins of a lattice, and that have too many joint values for `Enumerated`. The weight does not change. The block's
    proposal makes the first draw only. One sweep evaluates the block's factors once for each value that an entry of an
    element can have.

    Examples:
        >>> pg.Block("included", move=pg.Gibbs()).move
        Gibbs()
    """

    uses_proposal: ClassVar[bool] = False
    needs_finite: ClassVar[bool] = True

    @property
    def summary(self) -> str:
        return "Gibbs, one value at a time"

    def __call__(
        self, keys: MoveKeys, proposal: BoundKernel | None, conditional: Conditional, particle: Particle
    ) -> tuple[Particle, Elements, MoveInfo]:
        del proposal
        values = {name: particle.latents[name] for name in conditional.names}
        finite = conditional.finite
        for name, key in zip(conditional.names, jax.random.split(unrolled(keys.draw), len(values)), strict=True):
            values = _scanned(key, conditional, values, name, jnp.asarray(finite[name].values))
        log_probs = conditional.log_probs(values)
        log_v = jnp.zeros_like(conditional.reduce(log_probs))
        return replaced(particle, values, log_probs), log_v, MoveInfo(values, log_v, jnp.ones_like(log_v))


def _scanned(key: PRNGKey, conditional: Conditional, values: Values, name: str, support: Array) -> Values:
    """All entries of one site, place after place; elements are independent, so that they are drawn at the same time."""
    places = places_in_element(conditional, name, values[name].shape)

    def with_value(place: Array, number: Array, values: Values) -> Values:
        value = conditional.lay(support[number], name)
        return {**values, name: jnp.where(jnp.asarray(places) == place, value, values[name])}

    def log_density(place: Array, number: Array, values: Values) -> Elements:
        everywhere = jnp.broadcast_to(number, conditional.real.shape)
        return conditional.reduce(conditional.log_probs(with_value(place, everywhere, values)))

    def draw(place: Array, values: Values) -> Values:
        log_p = jax.vmap(lambda number: log_density(place, number, values), out_axes=1)(jnp.arange(support.size))
        noise = jax.random.gumbel(jax.random.fold_in(key, place), log_p.shape, log_p.dtype)
        moved = with_value(place, jnp.argmax(log_p + noise, axis=1), values)
        # Where every value is impossible, the old one stays.
        possible = conditional.lay(jnp.max(log_p, axis=1) > -jnp.inf, name)
        return {**values, name: jnp.where(possible, moved[name], values[name])}

    return jax.lax.fori_loop(0, places.size, draw, values)
