"""Exponential families with natural and canonical parameters, and KL divergences between members.

A family holds its canonical parameters; `natural()` and `from_natural()` convert, so that a conjugate update is an
addition, λ + ΣT. `distribution()` gives NumPyro's distribution.
"""

from functools import reduce
from itertools import accumulate
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.lax import stop_gradient
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Key
from numpyro.distributions.kl import kl_divergence

from popgibbs.distributions import ManyBeta

Parameter = Any  # an array or a number
Natural = tuple[Any, ...]


FEW = 16  # so many categories or components are written out one by one, which XLA on CPU makes into faster code


class FewCategories(dist.CategoricalLogits):
    """NumPyro's categorical, category by category, drawn by one uniform number instead of a Gumbel number a category.

    On CPU, reductions over an axis of a few categories, and gathers from it, take several times as long.
    """

    def sample(self, key: Key[Array, ""] | None, sample_shape: tuple[int, ...] = ()) -> Int[Array, "..."]:
        assert key is not None
        *before, last = accumulate(jnp.exp(column) for column in _log_softmax(jnp.asarray(self.logits)))
        uniform = jax.random.uniform(key, (*sample_shape, *self.batch_shape)) * last
        return sum(((uniform >= edge).astype(int) for edge in before), start=jnp.zeros(uniform.shape, int))

    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        columns = enumerate(_log_softmax(jnp.asarray(self.logits)))
        return sum((jnp.where(value == category, column, 0.0) for category, column in columns), start=jnp.zeros(()))


def softmax_of_few(logits: Float[Array, "... category"]) -> Float[Array, "... category"]:
    """`jax.nn.softmax` over a few categories, one by one."""
    return jnp.stack([jnp.exp(column) for column in _log_softmax(logits)], axis=-1)


def _log_softmax(logits: Float[Array, "... category"]) -> list[Float[Array, "..."]]:
    """The normalised logits, category by category."""
    columns = [logits[..., i] for i in range(logits.shape[-1])]
    peak = stop_gradient(reduce(jnp.maximum, columns))
    total = peak + jnp.log(sum(jnp.exp(column - peak) for column in columns))
    return [column - total for column in columns]


class Normal(eqx.Module):
    """T(z) = (z, z²), λ = (loc/scale², −1/(2 scale²))."""

    loc: Parameter
    scale: Parameter

    def natural(self) -> Natural:
        precision = self.scale**-2
        return self.loc * precision, -0.5 * precision

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        precision = -2 * natural[1]
        return cls(natural[0] / precision, precision**-0.5)

    def distribution(self) -> dist.Distribution:
        return dist.Normal(self.loc, self.scale)

    def kl(self, other: Self) -> Array:
        return kl_divergence(self.distribution(), other.distribution())


class Gamma(eqx.Module):
    """T(z) = (log z, z), λ = (concentration − 1, −rate)."""

    concentration: Parameter
    rate: Parameter

    def natural(self) -> Natural:
        return self.concentration - 1, -self.rate

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        return cls(natural[0] + 1, -natural[1])

    def distribution(self) -> dist.Distribution:
        return dist.Gamma(self.concentration, self.rate)

    def kl(self, other: Self) -> Array:
        return kl_divergence(self.distribution(), other.distribution())


class NormalGamma(eqx.Module):
    """τ ~ Gamma(concentration, rate), μ | τ ~ Normal(loc, 1/√(count·τ)).

    T(μ, τ) = (log τ, τ, τμ, τμ²) with λ as in the paper's appendix F.1.
    """

    loc: Parameter
    count: Parameter
    concentration: Parameter
    rate: Parameter

    def natural(self) -> Natural:
        return (
            self.concentration - 0.5,
            -self.rate - 0.5 * self.count * self.loc**2,
            self.count * self.loc,
            -0.5 * self.count,
        )

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        count = -2 * natural[3]
        loc = natural[2] / count
        return cls(loc, count, natural[0] + 0.5, -natural[1] - 0.5 * count * loc**2)

    def precision(self) -> dist.Distribution:
        """The distribution of τ."""
        return dist.Gamma(self.concentration, self.rate)

    def mean(self, tau: Array) -> dist.Distribution:
        """The distribution of μ given τ."""
        return dist.Normal(self.loc, (self.count * tau) ** -0.5)

    def kl(self, other: Self) -> Array:
        """KL(self ‖ other), element by element: that of τ, and that of μ given τ averaged over τ."""
        of_precision = kl_divergence(self.precision(), other.precision())
        ratio = other.count / self.count
        expected_precision = self.concentration / self.rate
        of_mean = 0.5 * (ratio - 1 - jnp.log(ratio) + other.count * expected_precision * (self.loc - other.loc) ** 2)
        return of_precision + of_mean


class Beta(eqx.Module):
    """T(z) = (log z, log(1 − z)), λ = (a − 1, b − 1)."""

    a: Parameter
    b: Parameter

    def natural(self) -> Natural:
        return self.a - 1, self.b - 1

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        return cls(natural[0] + 1, natural[1] + 1)

    def distribution(self) -> dist.Distribution:
        return ManyBeta(self.a, self.b)

    def kl(self, other: Self) -> Array:
        return kl_divergence(self.distribution(), other.distribution())


class Dirichlet(eqx.Module):
    """T(z) = log z, λ = concentration − 1."""

    concentration: Parameter

    def natural(self) -> Natural:
        return (self.concentration - 1,)

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        return cls(natural[0] + 1)

    def distribution(self) -> dist.Distribution:
        return dist.Dirichlet(self.concentration)

    def kl(self, other: Self) -> Array:
        return kl_divergence(self.distribution(), other.distribution())


class Categorical(eqx.Module):
    """T(z) = one-hot z, λ = logits; logits that differ by a constant are the same member."""

    logits: Parameter

    def natural(self) -> Natural:
        return (self.logits,)

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        return cls(natural[0])

    def distribution(self) -> dist.Distribution:
        few = jnp.shape(self.logits)[-1] <= FEW
        return (FewCategories if few else dist.CategoricalLogits)(self.logits)

    def kl(self, other: Self) -> Array:
        mine, others = jax.nn.log_softmax(self.logits), jax.nn.log_softmax(other.logits)
        return jnp.sum(jnp.where(mine > -jnp.inf, jnp.exp(mine) * (mine - others), 0.0), axis=-1)


class Bernoulli(eqx.Module):
    """T(z) = z, λ = logit."""

    logits: Parameter

    def natural(self) -> Natural:
        return (self.logits,)

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        return cls(natural[0])

    def distribution(self) -> dist.Distribution:
        return dist.Bernoulli(logits=self.logits)

    def kl(self, other: Self) -> Array:
        pair = Categorical(jnp.stack([jnp.zeros_like(self.logits), self.logits], axis=-1))
        other_pair = Categorical(jnp.stack([jnp.zeros_like(other.logits), other.logits], axis=-1))
        return pair.kl(other_pair)
