"""Gaussians on the real line, one per element of a block, whose shape a network may have corrected."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from popgibbs._random import unrolled
from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.distributions.normals import solve_triangular
from popgibbs.model import Coordinates
from popgibbs.proposals.base import BoundKernel

_WIDER = 3.0  # the wide part's standard deviation, relative to the Gaussian's


class Shape(NamedTuple):
    """A correction of standard Normal noise e, by axis of each element: shift + exp(log_scale) · t, with

        t = sinh((arsinh e + skew) · exp(tail)),

    the sinh-arsinh transformation of Jones and Pewsey (2009). All zeros change nothing.
    """

    shift: Float[Array, "element axis"]
    log_scale: Float[Array, "element axis"]
    skew: Float[Array, "element axis"]
    tail: Float[Array, "element axis"]

    def apply(self, noise: Float[Array, "element axis"]) -> Float[Array, "element axis"]:
        return self.shift + jnp.exp(self.log_scale) * jnp.sinh((jnp.arcsinh(noise) + self.skew) * jnp.exp(self.tail))

    def invert(self, shaped: Float[Array, "element axis"]) -> tuple[Float[Array, "element axis"], Elements]:
        """The noise, and the logarithm of its derivative."""
        t = (shaped - self.shift) * jnp.exp(-self.log_scale)
        inner = jnp.arcsinh(t) * jnp.exp(-self.tail) - self.skew
        log_slope = jnp.logaddexp(inner, -inner) - jnp.log(2.0) - self.tail - 0.5 * jnp.log1p(t**2) - self.log_scale
        return jnp.sinh(inner), jnp.sum(log_slope, axis=-1)


class BoundGaussian(BoundKernel):
    """One Gaussian per element, by the Cholesky factors of their precisions.

    A share of the draws is wide: half of these along all axes, half along one of them, because a tail that is heavy
    along one axis is hardly ever reached by draws that are wide along all.
    """

    def __init__(
        self,
        key: PRNGKey,
        coordinates: Coordinates,
        loc: Float[Array, "element axis"],
        factor: Float[Array, "element axis axis"],
        wide: float,
        shape: Shape | None = None,
    ):
        self.key, self.coordinates, self.wide, self.shape = key, coordinates, wide, shape
        real = coordinates.conditional.real[:, None]
        self.loc = jnp.where(real, loc, 0.0)  # padded elements have no factors
        self.factor = jnp.where(real[..., None], factor, jnp.eye(loc.shape[1]))

    def draw(self) -> tuple[Values, Elements]:
        num_elements, size = self.loc.shape
        # One draw for everything, because every use of random bits has to be compiled.
        noise = jax.random.normal(unrolled(self.key), (num_elements, size + 1 if self.wide else size), self.loc.dtype)
        if self.wide:
            noise, share = noise[:, :size], jax.scipy.special.ndtr(noise[:, size:]) / self.wide
            # Below 1/2 all axes are wide, then one after another.
            number = jnp.floor((2 * share - 1) * size)
            noise *= jnp.where((share < 0.5) | (number == jnp.arange(size)), _WIDER, 1.0)
        shaped = noise if self.shape is None else self.shape.apply(noise)
        position = self.loc + solve_triangular(self.factor, shaped, transposed=True)
        return self.coordinates.values(position), self._log_q(position)

    def score(self, values: Values) -> Elements:
        return self._log_q(self.coordinates.position(values))

    def _log_q(self, position: Float[Array, "element axis"]) -> Elements:
        noise = jnp.einsum("eij,ei->ej", self.factor, position - self.loc)
        log_slope = jnp.sum(jnp.log(jnp.diagonal(self.factor, axis1=-2, axis2=-1)), axis=-1)
        if self.shape is not None:
            noise, log_slope_of_noise = self.shape.invert(noise)
            log_slope += log_slope_of_noise
        log_q = _log_normal(noise)
        if self.wide:
            gains = 0.5 * (1 - _WIDER**-2) * noise**2 - jnp.log(_WIDER)  # of the density, by axis that is wide
            one, every = jax.nn.logsumexp(gains, axis=-1) - jnp.log(noise.shape[-1]), jnp.sum(gains, axis=-1)
            log_wide = jnp.logaddexp(one, every) + jnp.log(0.5 * self.wide)
            log_q += jnp.logaddexp(jnp.log1p(-self.wide), log_wide)
        log_q += log_slope - self.coordinates.log_volume(position)
        return jnp.where(self.coordinates.conditional.real, log_q, 0.0)


def _log_normal(noise: Float[Array, "element axis"]) -> Elements:
    return -0.5 * jnp.sum(noise**2, axis=-1) - 0.5 * noise.shape[-1] * jnp.log(2 * jnp.pi)
