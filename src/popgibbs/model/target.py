"""The joint density of one instance as factors: which sites touch which, and their log-probabilities."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from popgibbs._typing import Elements, LogProbs, Mask, Values
from popgibbs.data import Data
from popgibbs.model.partition import Partition
from popgibbs.model.program import Program, Site, evaluate, expand, finite_support, masked, raw_sites


class Target(eqx.Module):
    """log p(x, z) = Σ_s log p(s | parents), each factor unsummed over its plates, zero at padded elements.

    While a run is tempered, the factors of observed sites are raised to the power β.
    """

    model: Any
    data: Data
    sites: tuple[Site, ...] = eqx.field(static=True)

    @property
    def program(self) -> Program:
        return lambda: self.model(**self.data.values)

    def log_probs(self, latents: Values, factors: Iterable[str] | None = None) -> LogProbs:
        """The named factors (by default all). The others are traced but, their numbers unused, never computed."""
        _, log_probs = evaluate(self.program, jax.random.key(0), latents)
        wanted = [site.name for site in self.sites] if factors is None else factors
        sites = by_name(self.sites)
        if self.data.temper is not None:
            log_probs |= {name: self.data.temper * log_probs[name] for name in wanted if sites[name].observed}
        return masked({name: log_probs[name] for name in wanted}, sites, self.data.mask)

    @property
    def plate_sizes(self) -> dict[str, int]:
        """The size of each plate of the model for this instance."""
        _, shapes = jax.eval_shape(lambda: evaluate(self.program, jax.random.key(0), {}))
        return {plate: shapes[site.name].shape[axis] for site in self.sites for plate, axis in site.plates}

    def log_joint(self, latents: Values) -> jax.Array:
        """log p(x, z)."""
        return total(self.log_probs(latents))


def total(log_probs: LogProbs) -> jax.Array:
    """Σ over sites and plate elements."""
    return sum((jnp.sum(log_prob) for log_prob in log_probs.values()), start=jnp.zeros(()))


def by_name(sites: tuple[Site, ...]) -> dict[str, Site]:
    return {site.name: site for site in sites}


def latent_names(sites: tuple[Site, ...]) -> tuple[str, ...]:
    return tuple(site.name for site in sites if not site.observed)


def undrawn(sites: tuple[Site, ...], names: Iterable[str]) -> set[str]:
    """The latents other than the named ones."""
    return set(latent_names(sites)) - set(names)


def touched(sites: tuple[Site, ...], names: Iterable[str]) -> tuple[str, ...]:
    """The factors that contain one of the named sites: their own and their children's."""
    names = set(names)
    return tuple(site.name for site in sites if site.name in names or site.parents & names)


def constant(model: Any) -> Any:
    """The model with its gradient stopped: a proposal's gradient must not reach it, θ learns from log p alone."""
    dynamic, static = eqx.partition(model, eqx.is_inexact_array)
    return eqx.combine(stop_gradient(dynamic), static)


@dataclass(frozen=True)
class Summed:
    """Finite sites of a block that can be summed out, one element of a plate after another."""

    names: tuple[str, ...]
    partition: Partition


class Conditional(eqx.Module):
    """p(z_b | x, z_-b) of a block up to its constant: what a proposal draws for and a move aims at.

    At the initial step only some latents are given, and only the factors whose sites exist take part.
    """

    target: Target
    given: Values
    names: tuple[str, ...] = eqx.field(static=True)
    partition: Partition = eqx.field(static=True)
    initial: bool = eqx.field(static=True, default=False)
    summed: Summed | None = eqx.field(static=True, default=None)

    @property
    def modelled(self) -> Program:
        """The model's own program for the block's sites, given `given`."""
        return self.target.program

    def bind(self, proposal: Any) -> Program:
        """A user's proposal without arguments. It sees the model as a constant, and none of the block's own values."""
        call = getattr(proposal, "initial", proposal) if self.initial else proposal
        model = constant(self.target.model)
        return lambda: call(self.target.data, dict(self.given), model)

    @property
    def supports(self) -> list[tuple[int, ...]]:
        """The values of each of the block's sites, where they are finite."""
        # Of this instance: their number may depend on the size of an array.
        sites = raw_sites(self.target.program, jax.random.key(0), self.given)
        return [finite_support(sites[name]["fn"]) or () for name in self.names]

    def lay(self, elements: jax.Array, name: str) -> jax.Array:
        """One number for each element as the value of a site."""
        return self.partition.spread_values(elements, name, self.target.plate_sizes)

    @property
    def factors(self) -> tuple[str, ...]:
        """The factors that contain the block's sites and, at the initial step, no site that is still to be drawn."""
        exist = set(self.names) | set(self.given)
        sites = by_name(self.target.sites)
        return tuple(
            name
            for name in touched(self.target.sites, self.names)
            if sites[name].parents <= exist and (sites[name].observed or name in exist)
        )

    def log_probs(self, values: Values) -> LogProbs:
        """The factors of the block at other values of its sites."""
        return self.target.log_probs({**self.given, **values}, self.factors)

    def of_summed(self, values: Values) -> "Conditional":
        """The conditional of the sites that can be summed out, given values of the block's others."""
        assert self.summed is not None
        return Conditional(self.target, {**self.given, **values}, self.summed.names, self.summed.partition)

    def reduce(self, log_probs: LogProbs) -> Elements:
        """Log-probabilities summed into the block's elements."""
        return self.partition.reduce(log_probs, self.target.plate_sizes, self.given)

    def reduce_proposed(self, log_q: LogProbs) -> Elements:
        """A proposal's log-probabilities, padded elements left out, summed into the block's elements."""
        return self.reduce(self.mask({name: log_q[name] for name in self.names}))

    def mask(self, log_probs: LogProbs) -> LogProbs:
        """Numbers of the block's sites, by plate element, with zero at padded elements."""
        return masked(log_probs, by_name(self.target.sites), self.target.data.mask)

    def is_real(self, name: str, value: jax.Array) -> jax.Array:
        """Which batch elements of a site's value are real rather than padded."""
        site = by_name(self.target.sites)[name]
        return self.mask({name: jnp.ones(value.shape[: value.ndim - site.event_dim])})[name] > 0

    def accept(self, accepted: Mask, new: Values, old: Values, *, log_probs: bool) -> Values:
        """New values, or log-probabilities, where their element is accepted."""
        sizes = self.target.plate_sizes

        def choose(name: str) -> jax.Array:
            if log_probs:
                where = self.partition.spread(accepted, name, sizes, self.given)
            else:
                where = self.partition.spread_values(accepted, name, sizes)
            return jnp.where(where, new[name], old[name])

        return {name: choose(name) for name in new}

    @property
    def real(self) -> Mask:
        """Which elements of the block are real rather than padded."""
        plates = self.partition.plates
        real = jnp.ones(self.partition.shape(self.target.plate_sizes), bool)
        for axis, plate in enumerate(plates):
            if plate in self.target.data.mask:
                real &= expand(self.target.data.mask[plate], axis - len(plates))
        return real.reshape(-1)


def condition(
    target: Target, latents: Values, names: tuple[str, ...], partition: Partition, summed: Summed | None = None
) -> Conditional:
    """p(z_b | x, z_-b) at the latents of one particle."""
    given = {name: value for name, value in latents.items() if name not in names}
    return Conditional(target, given, names, partition, summed=summed)
