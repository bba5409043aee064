"""The deep generative mixture as a NumPyro program with a learned decoder."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Key

from popgibbs.statistics import Beta, Categorical, pick

NUM_CLUSTERS = 4
CENTRE_SCALE = 10.0
NOISE = 0.1


class Curve(eqx.Module):
    """The paper's decoder, a network with one hidden layer from [0, 1] to the plane, with its mean at the origin.

    Otherwise a shift of the curve and the opposite shift of all centres would cancel, and training would drift: the
    proposals' knowledge of x − μ would always be out of date, and the misfit would push the curve further.
    """

    hidden: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self, *, key: Key[Array, ""]):
        key_hidden, key_out = jax.random.split(key)
        hidden = eqx.nn.Linear(1, 32, key=key_hidden)
        # Hidden units that switch all along the input: with the usual biases most switch in the middle, and the curve
        # hardly moves at its ends.
        switch = jnp.linspace(-4.0, 4.0, 32)
        self.hidden = eqx.tree_at(lambda layer: layer.bias, hidden, -hidden.weight[:, 0] * switch)
        self.out = eqx.nn.Linear(32, 2, use_bias=False, key=key_out)

    def __call__(self, h: Float[Array, " point"]) -> Float[Array, "point 2"]:
        places = (jnp.arange(64) + 0.5) / 64
        return self.raw(h) - jnp.mean(self.raw(places), axis=0)

    def raw(self, h: Float[Array, " point"]) -> Float[Array, "point 2"]:
        # The input is scaled to [-4, 4]: over [0, 1] a fresh network is almost linear. Products are unrolled, because on
        # CPU they take several times as long with an axis of one or two entries.
        assert self.hidden.bias is not None
        hidden = jnp.tanh((8 * h[:, None] - 4) * self.hidden.weight[:, 0] + self.hidden.bias)
        return jnp.stack([hidden @ row for row in self.out.weight], axis=-1)


class Circle(eqx.Module):
    """A curve whose points are scaled to one learned distance from the origin."""

    direction: Curve
    log_radius: Array

    def __init__(self, *, key: Key[Array, ""]):
        self.direction = Curve(key=key)
        self.log_radius = jnp.zeros(())

    def __call__(self, h: Float[Array, " point"]) -> Float[Array, "point 2"]:
        towards = self.direction.raw(h)
        length = jnp.sqrt(towards[:, :1] ** 2 + towards[:, 1:] ** 2 + 1e-12)
        return jnp.exp(self.log_radius) * towards / length


class DeepMixture(eqx.Module):
    """μ_m ~ Normal(0, 10²), c_n ~ Categorical, h_n ~ Beta(1, 1), x_n ~ Normal(g(h_n) + μ_c, σ²), with g the decoder."""

    decode: Any
    noise: float = eqx.field(static=True, default=NOISE)

    def __call__(self, x: jax.Array) -> None:
        with numpyro.plate("clusters", NUM_CLUSTERS):
            mu: Any = numpyro.sample("mu", dist.Normal(0.0, CENTRE_SCALE).expand([2]).to_event(1))
        with numpyro.plate("points", x.shape[0]):
            c: Any = numpyro.sample("c", Categorical(jnp.zeros(NUM_CLUSTERS)).distribution())
            h: Any = numpyro.sample("h", Beta(1.0, 1.0).distribution())
            numpyro.sample("x", dist.Normal(self.decode(h) + pick(mu, c), self.noise).to_event(1), obs=x)
