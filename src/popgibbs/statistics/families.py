"""Exponential families with natural and canonical parameters, and KL divergences between members.

A family holds its canonical parameters; `natural()` and `from_natural()` convert, so that a conjugate update is an
addition, λ + ΣT. `distribution()` returns the NumPyro distribution.
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


FEW = 16
"""Up to this many categories or components are unrolled into separate operations, which run faster with XLA on CPU."""


class FewCategories(dist.CategoricalLogits):
    """NumPyro's `CategoricalLogits`, unrolled over a few categories.

    It draws one uniform number instead of one Gumbel number per category, and it neither reduces over the category axis
    nor gathers from it: on CPU, both take several times as long for an axis of a few entries. Draws are not those of
    `CategoricalLogits` with the same key.

    Args:
        logits: unnormalised log-probabilities, (*batch, category).

    Examples:
        >>> few = pg.statistics.FewCategories(logits=jnp.zeros((5, 4)))
        >>> few.sample(key).shape
        (5,)
        >>> round(float(jnp.exp(few.log_prob(jnp.zeros(5, int)))[0]), 4)
        0.25
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
    """`jax.nn.softmax` over a last axis of a few categories, unrolled.

    Args:
        logits: (*batch, category).

    Returns:
        Probabilities of the same shape.

    Examples:
        >>> pg.statistics.softmax_of_few(jnp.zeros((3, 4)))[0].tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    return jnp.stack([jnp.exp(column) for column in _log_softmax(logits)], axis=-1)


def _log_softmax(logits: Float[Array, "... category"]) -> list[Float[Array, "..."]]:
    """The normalised logits, category by category."""
    columns = [logits[..., i] for i in range(logits.shape[-1])]
    peak = stop_gradient(reduce(jnp.maximum, columns))
    total = peak + jnp.log(sum(jnp.exp(column - peak) for column in columns))
    return [column - total for column in columns]


class Normal(eqx.Module):
    """The Normal family: T(z) = (z, z²), λ = (loc/scale², −1/(2 scale²)).

    Args:
        loc: the mean, an array or a number.
        scale: the standard deviation, positive; broadcast against `loc`.

    Examples:
        A conjugate update adds the sufficient statistics of the likelihood, here of x = 3 with unit variance:

        >>> prior = pg.statistics.Normal(loc=jnp.array(0.0), scale=jnp.array(1.0))
        >>> first, second = prior.natural()
        >>> posterior = pg.statistics.Normal.from_natural((first + 3.0, second - 0.5))
        >>> float(posterior.loc), round(float(posterior.scale) ** 2, 3)
        (1.5, 0.5)
    """

    loc: Parameter
    scale: Parameter

    def natural(self) -> Natural:
        """The natural parameters λ, one array per sufficient statistic."""
        precision = self.scale**-2
        return self.loc * precision, -0.5 * precision

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """The member with these natural parameters."""
        precision = -2 * natural[1]
        return cls(natural[0] / precision, precision**-0.5)

    def distribution(self) -> dist.Distribution:
        """The NumPyro distribution of this member."""
        return dist.Normal(self.loc, self.scale)

    def kl(self, other: Self) -> Array:
        """KL(self ‖ other) per batch element."""
        return kl_divergence(self.distribution(), other.distribution())


class Gamma(eqx.Module):
    """The Gamma family: T(z) = (log z, z), λ = (concentration − 1, −rate).

    Args:
        concentration: positive, an array or a number.
        rate: positive; broadcast against `concentration`.

    Examples:
        >>> pg.statistics.Gamma(concentration=2.0, rate=3.0).natural()
        (1.0, -3.0)
        >>> pg.statistics.Gamma.from_natural((1.0, -3.0))
        Gamma(concentration=2.0, rate=3.0)
    """

    concentration: Parameter
    rate: Parameter

    def natural(self) -> Natural:
        """The natural parameters λ, one array per sufficient statistic."""
        return self.concentration - 1, -self.rate

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """The member with these natural parameters."""
        return cls(natural[0] + 1, -natural[1])

    def distribution(self) -> dist.Distribution:
        """The NumPyro distribution of this member."""
        return dist.Gamma(self.concentration, self.rate)

    def kl(self, other: Self) -> Array:
        """KL(self ‖ other) per batch element."""
        return kl_divergence(self.distribution(), other.distribution())


class NormalGamma(eqx.Module):
    """The Normal-Gamma family: τ ~ Gamma(concentration, rate), μ | τ ~ Normal(loc, 1/√(count·τ)).

    T(μ, τ) = (log τ, τ, τμ, τμ²), with λ as in appendix F.1 of the paper. It is the conjugate prior of the mean μ and
    the precision τ of a Normal. A program samples its two parts one after the other, from `precision()` and `mean(tau)`.

    Args:
        loc: the mean of μ, an array or a number.
        count: the number of observations that the prior of μ is worth, positive.
        concentration: that of τ, positive.
        rate: that of τ, positive.

    Examples:
        >>> prior = pg.statistics.NormalGamma(loc=0.0, count=0.1, concentration=2.0, rate=2.0)
        >>> tau = prior.precision().sample(key, (3,))
        >>> prior.mean(tau).sample(key).shape
        (3,)
        >>> float(prior.kl(prior))
        0.0
    """

    loc: Parameter
    count: Parameter
    concentration: Parameter
    rate: Parameter

    def natural(self) -> Natural:
        """The natural parameters λ, one array per sufficient statistic."""
        return (
            self.concentration - 0.5,
            -self.rate - 0.5 * self.count * self.loc**2,
            self.count * self.loc,
            -0.5 * self.count,
        )

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """The member with these natural parameters."""
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
        """KL(self ‖ other) per element: that of τ, plus that of μ given τ averaged over τ."""
        of_precision = kl_divergence(self.precision(), other.precision())
        ratio = other.count / self.count
        expected_precision = self.concentration / self.rate
        of_mean = 0.5 * (ratio - 1 - jnp.log(ratio) + other.count * expected_precision * (self.loc - other.loc) ** 2)
        return of_precision + of_mean


class Beta(eqx.Module):
    """The Beta family: T(z) = (log z, log(1 − z)), λ = (a − 1, b − 1).

    Its distribution is a `popgibbs.distributions.ManyBeta`.

    Args:
        a: NumPyro's `concentration1`, positive, an array or a number.
        b: NumPyro's `concentration0`, positive; broadcast against `a`.

    Examples:
        >>> pg.statistics.Beta(a=3.0, b=2.0).natural()
        (2.0, 1.0)
        >>> float(pg.statistics.Beta(a=3.0, b=1.0).distribution().mean)
        0.75
    """

    a: Parameter
    b: Parameter

    def natural(self) -> Natural:
        """The natural parameters λ, one array per sufficient statistic."""
        return self.a - 1, self.b - 1

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """The member with these natural parameters."""
        return cls(natural[0] + 1, natural[1] + 1)

    def distribution(self) -> dist.Distribution:
        """The NumPyro distribution of this member."""
        return ManyBeta(self.a, self.b)

    def kl(self, other: Self) -> Array:
        """KL(self ‖ other) per batch element."""
        return kl_divergence(self.distribution(), other.distribution())


class Dirichlet(eqx.Module):
    """The Dirichlet family: T(z) = log z, λ = concentration − 1.

    Args:
        concentration: positive, (*batch, category).

    Examples:
        >>> (natural,) = pg.statistics.Dirichlet(jnp.array([1.0, 2.0, 3.0])).natural()
        >>> natural.tolist()
        [0.0, 1.0, 2.0]
    """

    concentration: Parameter

    def natural(self) -> Natural:
        """The natural parameters λ, one array per sufficient statistic."""
        return (self.concentration - 1,)

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """The member with these natural parameters."""
        return cls(natural[0] + 1)

    def distribution(self) -> dist.Distribution:
        """The NumPyro distribution of this member."""
        return dist.Dirichlet(self.concentration)

    def kl(self, other: Self) -> Array:
        """KL(self ‖ other) per batch element."""
        return kl_divergence(self.distribution(), other.distribution())


class Categorical(eqx.Module):
    """The categorical family: T(z) = one-hot z, λ = logits; logits that differ by a constant are the same member.

    Its distribution is a `FewCategories` for up to `FEW` categories, else NumPyro's `CategoricalLogits`.

    Args:
        logits: unnormalised log-probabilities, (*batch, category).

    Examples:
        >>> uniform = pg.statistics.Categorical(jnp.zeros(3))
        >>> type(uniform.distribution()).__name__
        'FewCategories'
        >>> float(uniform.kl(pg.statistics.Categorical(jnp.ones(3))))
        0.0
    """

    logits: Parameter

    def natural(self) -> Natural:
        """The natural parameters λ, one array per sufficient statistic."""
        return (self.logits,)

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """The member with these natural parameters."""
        return cls(natural[0])

    def distribution(self) -> dist.Distribution:
        """The NumPyro distribution of this member."""
        few = jnp.shape(self.logits)[-1] <= FEW
        return (FewCategories if few else dist.CategoricalLogits)(self.logits)

    def kl(self, other: Self) -> Array:
        """KL(self ‖ other) per batch element."""
        mine, others = jax.nn.log_softmax(self.logits), jax.nn.log_softmax(other.logits)
        return jnp.sum(jnp.where(mine > -jnp.inf, jnp.exp(mine) * (mine - others), 0.0), axis=-1)


class Bernoulli(eqx.Module):
    """The Bernoulli family: T(z) = z, λ = logit.

    Args:
        logits: log-odds of z = 1, an array or a number.

    Examples:
        >>> pg.statistics.Bernoulli(jnp.array(0.0)).distribution().probs.tolist()
        0.5
    """

    logits: Parameter

    def natural(self) -> Natural:
        """The natural parameters λ, one array per sufficient statistic."""
        return (self.logits,)

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """The member with these natural parameters."""
        return cls(natural[0])

    def distribution(self) -> dist.Distribution:
        """The NumPyro distribution of this member."""
        return dist.Bernoulli(logits=self.logits)

    def kl(self, other: Self) -> Array:
        """KL(self ‖ other) per batch element."""
        pair = Categorical(jnp.stack([jnp.zeros_like(self.logits), self.logits], axis=-1))
        other_pair = Categorical(jnp.stack([jnp.zeros_like(other.logits), other.logits], axis=-1))
        return pair.kl(other_pair)
