"""Digits that move over a canvas: their identity is constant, their position changes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Key

from popgibbs.model import StateSpaceModel
from popgibbs.paper.bmnist.images import DIGIT, compose

CODE = 10
STEP_SCALE = 0.1  # the paper's σ0
FLOOR = 1e-3  # keeps pixels from being certain, so that a single grey one does not dominate the likelihood


def layers(sizes: tuple[int, ...], *, key: Key[Array, ""]) -> eqx.nn.Sequential:
    """A network with layers of the given sizes and ReLU between them."""
    parts: list[Any] = []
    for inputs, outputs, key_layer in zip(sizes, sizes[1:], jax.random.split(key, len(sizes) - 1), strict=False):
        parts += [eqx.nn.Linear(inputs, outputs, key=key_layer), eqx.nn.Lambda(jax.nn.relu)]
    return eqx.nn.Sequential(parts[:-1])


class BouncingDigits(StateSpaceModel):
    """what_d ~ Normal(0, I), where_{d,1} ~ Normal(0, I), where_{d,t} ~ Normal(where_{d,t-1}, 0.1² I), pixels Bernoulli.

    The digits of a frame are decoded, placed and added; the sum is clipped to [0, 1].
    """

    state, observed = "where", "frames"

    decoder: eqx.nn.Sequential
    num_digits: int = eqx.field(static=True)

    def __init__(self, num_digits: int, mean: Float[Array, "28 28"], *, key: Key[Array, ""]):
        decoder = layers((CODE, 200, 400, DIGIT**2), key=key)
        # A fresh decoder draws the mean digit.
        share = jnp.clip(mean, 0.01, 0.99).reshape(-1)
        self.decoder = eqx.tree_at(lambda d: d.layers[-1].bias, decoder, jnp.log(share / (1 - share)))
        self.num_digits = num_digits

    def decode(self, what: Float[Array, "digit 10"]) -> Float[Array, "digit 28 28"]:
        return jax.nn.sigmoid(jax.vmap(self.decoder)(what)).reshape(-1, DIGIT, DIGIT)

    def globals(self) -> Float[Array, "digit 28 28"]:
        """The images of the digits."""
        what: Any = numpyro.sample("what", dist.Normal(0.0, 1.0).expand([self.num_digits, CODE]).to_event(2))
        return self.decode(what)

    def initial(self, globals: Any) -> dist.Distribution:
        return dist.Normal(0.0, 1.0).expand([self.num_digits, 2])

    def transition(self, previous: Any, globals: Any) -> dist.Distribution:
        return dist.Normal(previous, STEP_SCALE)

    def emission(self, state: Any, globals: Any) -> dist.Distribution:
        return GreyPixels(compose(globals, state))


class GreyPixels(dist.Distribution):
    """The Bernoulli likelihood on grey values, x log p + (1 − x) log(1 − p), with p kept away from 0 and 1.

    NumPyro's Bernoulli gives values between 0 and 1 no probability.
    """

    def __init__(self, image: Any):
        self._share = FLOOR + (1 - 2 * FLOOR) * image
        super().__init__((), image.shape)

    @property
    def support(self) -> Any:
        return dist.constraints.independent(dist.constraints.unit_interval, 2)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Array:
        uniform = jax.random.uniform(key, (*sample_shape, *self.event_shape))
        return (uniform < self._share).astype(self._share.dtype)

    def log_prob(self, value: Any, intermediates: Any = None) -> Float[Array, ""]:
        del intermediates
        return jnp.sum(value * jnp.log(self._share) + (1 - value) * jnp.log1p(-self._share))
