"""The first draw of a mixture: seeds among the data, a few rounds of EM by Newton's method, a Gaussian for every site.

    s ~ k-means++ among the entries of the assigned sites                     the randomness inside the proposal
    repeat:  z_b = argmax Q_b(z_b) for every continuous site,  r = p(c | x, z)
    z_b ~ Normal(mode of Q_b, inflated curvature),  components shuffled

Q is the expected log joint under the responsibilities r (`model/soft.py`). It is the model's own, so this holds for any
likelihood and needs no training. Whatever the seeds, the proposal reaches all values, so its weights are exact.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float, Int

from popgibbs._random import standard
from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import (
    BlockConditional,
    Conditional,
    Coordinates,
    Partition,
    Site,
    SoftConditional,
    Target,
    by_name,
    entry_mask,
    responsibilities,
    touched,
    typical_sites,
)
from popgibbs.proposals.base import BoundKernel, Kernel
from popgibbs.proposals.gaussian import BoundGaussian
from popgibbs.proposals.newton import mode_and_precision
from popgibbs.proposals.relabelling import log_average_over_labellings
from popgibbs.statistics import spread_points

_STEPS = 2  # of Newton's method in every round
# Standard deviations, because the expected log joint ignores what the assignments do not tell. With 1.15 the evidence of
# overlapping clusters came out 0.3 nats lower, from modes that draws did not reach.
_INFLATED = 1.5
_WIDE = 0.1  # the share of draws that are three times as wide


class ComponentDraw(Kernel):
    """The first draw of all continuous sites of a model with components and an assignment."""

    from_model: ClassVar[bool] = True
    takes_any_key: ClassVar[bool] = True
    splits: ClassVar[bool] = False

    by: str = eqx.field(static=True)  # the assignment
    plate: str = eqx.field(static=True)  # of the components
    shuffled: tuple[tuple[str, tuple[int, ...]], ...] = eqx.field(static=True)  # axes over components, if they are alike
    rounds: int = eqx.field(static=True, default=5)
    empty: float = eqx.field(static=True, default=0.1)  # how often a component begins, and stays, without data
    only_components: bool = eqx.field(static=True, default=True)  # whether no site outside of the plate is shuffled

    @property
    def draws_from_many(self) -> bool:
        # With a site outside of the plate, the density of components is averaged over labellings and that site's is not:
        # right for a random order, but not the density under one key, which a mixture over keys needs.
        return self.only_components

    @property
    def summary(self) -> str:
        return "EM from seeds among the data"

    def bind(self, key: PRNGKey, conditional: Conditional) -> "BoundComponentDraw":
        assert isinstance(conditional, BlockConditional)
        key_seeds, key_draw, key_order = jax.random.split(standard(key), 3)
        sites = by_name(conditional.target.sites)
        inside = tuple(name for name in conditional.names if sites[name].axis(self.plate) is not None)
        groups = [inside, *((name,) for name in conditional.names if name not in inside)]
        em = _EM(conditional, self.by, self.plate, groups)
        state = em.run(key_seeds, self.rounds, self.empty)
        keys = jax.random.split(key_draw, len(groups))
        bound = [em.gaussian(k, group, *state) for k, group in zip(keys, groups, strict=True)]
        size = conditional.target.plate_sizes[self.plate]
        order = jax.random.permutation(key_order, size) if self.shuffled else jnp.arange(size)
        return BoundComponentDraw(bound, groups, dict(self.shuffled), order)


@dataclass(frozen=True)
class _EM:
    """Rounds of EM for one particle."""

    conditional: BlockConditional
    by: str
    plate: str
    groups: list[tuple[str, ...]]

    def run(self, key: PRNGKey, rounds: int, empty: float) -> tuple[Values, Array]:
        """The values of all continuous sites, and the gates, after some rounds."""
        key_seeds, key_empty = jax.random.split(key)
        target = self.conditional.target
        num = target.plate_sizes[self.plate]
        traced = typical_sites(self.conditional.modelled, self.conditional.given)
        values = {name: traced[name]["value"] for group in self.groups for name in group}
        gates = self._seeded(key_seeds, num)
        dropped = jax.random.uniform(key_empty, (num,)) < empty
        dropped = jnp.where(jnp.all(dropped), jnp.arange(num) > 0, dropped)
        kept = jnp.where(dropped, 0.0, 1.0).reshape(-1, *[1] * (gates.ndim - 1))

        def one(_: Any, state: tuple[Values, Array]) -> tuple[Values, Array]:
            values, gates = state
            for group in self.groups:
                coordinates = Coordinates(self._soft(group, values, gates))
                start = coordinates.position({name: values[name] for name in group})
                start = jnp.where(jnp.isfinite(start), start, 0.0)
                mode, _ = mode_and_precision(coordinates, _STEPS, start)
                values = {**values, **coordinates.values(mode)}
            found = responsibilities(target, {**self.conditional.given, **values}, self.by, gates.shape)
            return values, _renormalised(found * kept)

        return stop_gradient(jax.lax.fori_loop(0, rounds, one, (values, _renormalised(gates * kept))))

    def gaussian(self, key: PRNGKey, group: tuple[str, ...], values: Values, gates: Array) -> BoundGaussian:
        coordinates = Coordinates(self._soft(group, values, gates))
        start = coordinates.position({name: values[name] for name in group})
        loc, factor = mode_and_precision(coordinates, _STEPS, jnp.where(jnp.isfinite(start), start, 0.0))
        return BoundGaussian(key, coordinates, *stop_gradient((loc, factor / _INFLATED)), wide=_WIDE)

    def _soft(self, group: tuple[str, ...], values: Values, gates: Array) -> SoftConditional:
        target, sites = self.conditional.target, by_name(self.conditional.target.sites)
        others = {name: value for name, value in values.items() if name not in group}
        given = {**self.conditional.given, **others}
        if sites[group[0]].axis(self.plate) is not None:
            partition = Partition(target.sites, (self.plate,), sites[self.by])
        else:
            factors = [sites[name] for name in touched(target.sites, group)]
            shared = [p for p, _ in sites[group[0]].plates if all(f.axis(p) is not None for f in factors)]
            partition = Partition(target.sites, tuple(shared))
        return SoftConditional(
            target, partition, self.by, gates, names=group, given=given, initial=self.conditional.initial
        )

    def _seeded(self, key: PRNGKey, num: int) -> Float[Array, "value *element"]:
        """Gates by the distance of the assigned entries from a few of them."""
        target, sites = self.conditional.target, by_name(self.conditional.target.sites)
        shape = tuple(target.plate_sizes[plate] for plate, _ in sites[self.by].plates)
        observed = target.observed
        mask = entry_mask(target, self.by, shape).reshape(-1) > 0
        features = jnp.concatenate(
            [_feature(observed[site.name], site.discrete, len(mask)) for site in seeds_among(target, self.by)], axis=-1
        )
        count = jnp.maximum(jnp.sum(mask), 1)
        mean = jnp.sum(jnp.where(mask[:, None], features, 0.0), axis=0) / count
        spread = jnp.sqrt(jnp.sum(jnp.where(mask[:, None], (features - mean) ** 2, 0.0), axis=0) / count)
        features = (features - mean) / jnp.where(spread > 0, spread, 1.0)
        seeds = spread_points(key, features, mask, num)
        squares = jnp.sum((features - seeds[:, None]) ** 2, axis=-1)
        nearest = jnp.sum(jnp.where(mask, jnp.min(squares, axis=0), 0.0)) / count
        return jax.nn.softmax(-0.5 * squares / (nearest + 1e-3), axis=0).reshape(num, *shape)


def seeds_among(target: Target, by: str) -> list[Site]:
    """The observed sites whose entries can be seeds: one per element of the assignment, with meaningful distances."""
    plates = set(dict(by_name(target.sites)[by].plates))
    children = [site for site in target.sites if by in site.parents and site.observed and not site.categorical]
    return [site for site in children if set(dict(site.plates)) == plates]


def _feature(value: Array, discrete: bool, num: int) -> Float[Array, "entry feature"]:
    flat = value.astype(float).reshape(num, -1)
    return jnp.sqrt(jnp.maximum(flat, 0.0)) if discrete else flat  # the square root evens out the variance of counts


def _renormalised(gates: Array) -> Array:
    total = jnp.sum(gates, axis=0, keepdims=True)
    return jnp.where(total > 0, gates / jnp.where(total > 0, total, 1.0), 1.0 / gates.shape[0])


@dataclass(frozen=True)
class BoundComponentDraw(BoundKernel):
    """Gaussians for all groups of sites, the first of them components; components that are alike are shuffled."""

    bound: list[BoundGaussian]
    groups: list[tuple[str, ...]]
    axes: dict[str, tuple[int, ...]]  # by site, those that run over components
    order: Int[Array, " component"]

    def draw(self) -> tuple[Values, Elements]:
        values: Values = {}
        for bound in self.bound:
            values |= bound.draw()[0]
        return self._taken(values, self.order), self._log_density(values)

    def score(self, values: Values) -> Elements:
        return self._log_density(self._taken(values, jnp.argsort(self.order)))

    def _taken(self, values: Values, order: Int[Array, " component"]) -> Values:
        """The values with their components in another order."""
        taken = dict(values)
        for name in values:
            for axis in self.axes.get(name, ()):
                taken[name] = jnp.take(taken[name], order, axis=axis)
        return taken

    def _log_density(self, values: Values) -> Elements:
        log_q = jnp.zeros(())
        for bound, group in zip(self.bound, self.groups, strict=True):
            own = {name: values[name] for name in group}
            is_shuffled = self.axes and group == self.groups[0]
            log_q += self._averaged(bound, own) if is_shuffled else jnp.sum(bound.score(own))
        return log_q[None]

    def _averaged(self, components: BoundGaussian, values: Values) -> Array:
        """The density of the components, averaged over their labellings."""
        places = jnp.arange(self.order.shape[0])

        def rolled(shift: Array) -> Elements:
            return components.score(self._taken(values, (places + shift) % places.size))

        by_shift = jax.vmap(rolled)(places)
        return log_average_over_labellings(by_shift[(places - places[:, None]) % places.size, places[:, None]])
