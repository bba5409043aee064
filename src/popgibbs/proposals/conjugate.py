"""Exact conditionals of exponential families, read off the gradients of the model's own factors.

The log-density of a Gamma, Beta or Dirichlet variable x has a gradient that is linear in x, along the real numbers u
behind x = exp u, x = 1/(1 + exp −u) or x = softmax u:

    Gamma(c + 1, s):      c − s x
    Beta(c + 1, s − c + 1):   c − s x
    Dirichlet(c + 1):     c − s x,  s = Σ c

So gradients at two values give the parameters, whatever the model's program looks like. `is_exact` looks at a third
value: for factors of another form the three disagree.
"""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.lax import stop_gradient
from jaxtyping import Array

from popgibbs._random import unrolled
from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.distributions import ManyBeta, log_gamma_variates
from popgibbs.model import BlockConditional, Conditional, Coordinates, Partition, typical_sites
from popgibbs.proposals.base import BoundKernel, Gaussians, Kernel
from popgibbs.proposals.gaussian import BoundGaussian
from popgibbs.proposals.newton import gaussian_moments, gradient_of

_LEAST = 1e-3  # of a parameter, where rounding has made it negative
_AGREEMENT = 2e-3  # of gradients at a third value, relative to their terms


class Conjugate(Kernel):
    """The exact conditional of one site whose factors together have the form of an exponential family."""

    from_model: ClassVar[bool] = True
    takes_any_key: ClassVar[bool] = True

    family: str = eqx.field(static=True)

    @property
    def summary(self) -> str:
        return f"exact, {self.family.title()}"

    def gaussians(self, names: tuple[str, ...], partition: Partition) -> Gaussians:
        return [(names, partition)] if self.family == "normal" else []

    def bind(self, key: PRNGKey, conditional: Conditional) -> BoundKernel:
        assert isinstance(conditional, BlockConditional)
        if self.family == "normal":
            coordinates = Coordinates(conditional)
            return BoundGaussian(key, coordinates, *stop_gradient(gaussian_moments(coordinates)), wide=0.0)
        return BoundConjugate(key, conditional, stop_gradient(_parameters(self.family, conditional)), self.family)


class BoundConjugate(BoundKernel):
    """The exact conditional at one state of the other sites."""

    def __init__(self, key: PRNGKey, conditional: BlockConditional, parameters: tuple[Array, Array], family: str):
        self.key, self.conditional = key, conditional
        (self.name,) = conditional.names
        constant, slope = parameters
        self.distribution: Any
        if family == "gamma":
            self.distribution = dist.Gamma(_positive(constant + 1), _positive(slope))
        elif family == "beta":
            self.distribution = ManyBeta(_positive(constant + 1), _positive(slope - constant + 1))
        else:
            self.distribution = dist.Dirichlet(_positive(constant + 1))

    def draw(self) -> tuple[Values, Elements]:
        values = {self.name: self._drawn()}
        return values, self.score(values)

    def _drawn(self) -> Array:
        """A draw inside the support, although float32 rounds to its ends."""
        key = unrolled(self.key)
        if isinstance(self.distribution, dist.Gamma):
            log_variates = log_gamma_variates(key, jnp.asarray(self.distribution.concentration))
            value = jnp.exp(log_variates) / jnp.asarray(self.distribution.rate)
            return jnp.maximum(value, jnp.finfo(value.dtype).tiny)
        if isinstance(self.distribution, dist.Dirichlet):
            shares = jax.nn.softmax(log_gamma_variates(key, jnp.asarray(self.distribution.concentration)), axis=-1)
            return jnp.clip(shares, 1e-30, 1.0)
        return jnp.clip(self.distribution.sample(key), 1e-30, 1.0 - 1e-7)

    def score(self, values: Values) -> Elements:
        log_q = jnp.asarray(self.distribution.log_prob(values[self.name]))
        axes = tuple(range(_batch_dim(self.conditional, self.name, values[self.name]), log_q.ndim))
        return self.conditional.reduce_proposed({self.name: jnp.sum(log_q, axis=axes)})


def is_exact(family: str, key: PRNGKey, conditional: BlockConditional) -> Array:
    """Whether the block's factors together have the form of a family, by their gradients at a few values."""
    if family == "normal":
        return _is_normal(key, Coordinates(conditional))
    return _is_conjugate(family, key, conditional)


def _is_normal(key: PRNGKey, coordinates: Coordinates) -> Array:
    """Whether the gradient is affine: equal steps from two places change it equally."""
    gradient = gradient_of(coordinates)
    keys = jax.random.split(key, 2)
    place, step = (jax.random.normal(k, (coordinates.num_elements, coordinates.size)) for k in keys)
    zero = jnp.zeros_like(place)
    here, there = gradient(step) - gradient(zero), gradient(place + step) - gradient(place)
    size = jnp.max(jnp.abs(here), axis=-1) + jnp.max(jnp.abs(there), axis=-1)
    scale = size + 1e-3 * jnp.max(jnp.abs(gradient(place)), axis=-1)
    agrees = jnp.max(jnp.abs(here - there), axis=-1) <= _AGREEMENT * scale
    return jnp.all((agrees & (size > 0)) | ~coordinates.conditional.real)


def _is_conjugate(family: str, key: PRNGKey, conditional: BlockConditional) -> Array:
    """Whether the gradient at a random value is what the parameters say."""
    constant, slope = _parameters(family, conditional)
    centre = _centre(family, conditional)
    other = centre + 0.7 * jax.random.normal(key, centre.shape)
    value = _value(family, other)
    found = _gradient(family, conditional, other)
    expected, size = constant - slope * value, jnp.abs(constant) + jnp.abs(slope * value) + 1.0
    agrees = jnp.abs(found - expected) <= _AGREEMENT * size
    valid = constant + 1 > 0
    if family == "gamma":
        valid &= slope > 0
    elif family == "beta":
        valid &= slope - constant + 1 > 0
    real = conditional.is_real(conditional.names[0], value)
    real = real.reshape(real.shape + (1,) * (value.ndim - real.ndim))
    return jnp.all((agrees & valid) | ~real)


def _parameters(family: str, conditional: BlockConditional) -> tuple[Array, Array]:
    """c and s, in the shape of the site's value."""
    gradient = jax.vmap(partial(_gradient, family, conditional))

    def solve(pair: Array) -> tuple[Array, Array]:
        value, slopes = _value(family, pair), gradient(pair)
        products, squares = (slopes[1] - slopes[0]) * (value[1] - value[0]), (value[1] - value[0]) ** 2
        if family == "dirichlet":  # one slope for all shares
            products, squares = (jnp.sum(part, axis=-1, keepdims=True) for part in (products, squares))
        slope = -products / squares
        return slopes[0] + slope * value[0], jnp.broadcast_to(slope, value[0].shape)

    first = _centre(family, conditional)
    pair = jnp.stack([first, first + _second(family, first)])
    if family != "gamma":
        return solve(pair)

    def again(_: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        constant, slope = solve(state[0])
        mean = jnp.log(_positive(constant + 1) / _positive(slope))
        return jnp.stack([mean - 0.5, mean + 0.5]), constant, slope

    # Twice, the second time where the mass is, because far from it rounding is large.
    _, constant, slope = jax.lax.fori_loop(0, 2, again, (pair, jnp.zeros_like(first), jnp.zeros_like(first)))
    return constant, slope


def _gradient(family: str, conditional: BlockConditional, real: Array) -> Array:
    (name,) = conditional.names

    def log_density(real: Array) -> Array:
        return jnp.sum(conditional.reduce(conditional.log_probs({name: _value(family, real)})))

    return jax.grad(log_density)(real)


def _value(family: str, real: Array) -> Array:
    if family == "gamma":
        return jnp.exp(real)
    return jax.nn.sigmoid(real) if family == "beta" else jax.nn.softmax(real, axis=-1)


def _centre(family: str, conditional: BlockConditional) -> Array:
    (name,) = conditional.names
    value = typical_sites(conditional.modelled, conditional.given)[name]["value"]
    return jnp.log(value) if family == "gamma" else jnp.zeros(value.shape)


def _second(family: str, real: Array) -> Array:
    """A step to a second value."""
    return jnp.linspace(-1.0, 1.0, real.shape[-1]) if family == "dirichlet" else jnp.ones(())


def _positive(parameter: Array) -> Array:
    return jnp.where(parameter > _LEAST, parameter, _LEAST)


def _batch_dim(conditional: BlockConditional, name: str, value: Array) -> int:
    return conditional.is_real(name, value).ndim
