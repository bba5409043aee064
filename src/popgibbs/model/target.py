"""The joint density of one instance as factors: their log-probabilities, and the sites that each depends on."""

from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from popgibbs._reuse import computed_once
from popgibbs._typing import LogProbs, Values
from popgibbs.data import Data
from popgibbs.model.program import Program, Site, evaluate, masked


class Target(eqx.Module):
    """log p(x, z) = Σ_s log p(s | parents), each factor unsummed over its plates, zero at padded elements.

    In tempered training the factors of observed sites are raised to the power β.
    """

    model: Any
    data: Data
    sites: tuple[Site, ...] = eqx.field(static=True)
    beta: Any = None  # the power of the likelihood; None: 1

    @property
    def program(self) -> Program:
        return lambda: self.model(**self.data.values)

    def log_probs(self, latents: Values, factors: Iterable[str] | None = None) -> LogProbs:
        """The named factors, by default all. The others are traced but never computed, because they are unused."""
        _, log_probs = evaluate(self.program, jax.random.key(0), latents)
        wanted = [site.name for site in self.sites] if factors is None else list(factors)
        sites = by_name(self.sites)
        if self.beta is not None:
            # A power of zero is one, also of a likelihood of zero.
            log_probs |= {
                name: jnp.where(self.beta > 0, self.beta * log_probs[name], 0.0)
                for name in wanted
                if sites[name].observed
            }
        return masked({name: log_probs[name] for name in wanted}, sites, self.data.mask)

    @property
    def observed(self) -> Values:
        """The values of the observed sites."""
        values, _ = evaluate(self.program, jax.random.key(0), {})
        return {site.name: values[site.name] for site in self.sites if site.observed}

    @computed_once
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


def entry_mask(target: Target, name: str, shape: tuple[int, ...]) -> jax.Array:
    """1 for the real entries of a factor, and 0 for padding and for entries that the model itself masks."""
    return masked({name: jnp.ones(shape)}, by_name(target.sites), target.data.mask)[name]


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


def existing(sites: tuple[Site, ...], names: Iterable[str], drawn: Iterable[str]) -> tuple[str, ...]:
    """The factors that contain one of the named sites, as far as all their latents are named or drawn."""
    names = set(names)
    exist, named = names | set(drawn), by_name(sites)
    return tuple(
        name for name in touched(sites, names) if named[name].parents <= exist and (named[name].observed or name in exist)
    )


def constant(model: Any) -> Any:
    """The model with its gradient stopped, because θ gets its gradient from log p alone, never from a proposal."""
    dynamic, static = eqx.partition(model, eqx.is_inexact_array)
    return eqx.combine(stop_gradient(dynamic), static)
