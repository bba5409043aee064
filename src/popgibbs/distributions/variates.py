"""Beta variates and densities for many elements at once.

On CPU, JAX draws Gamma variates, and with them Beta variates, one element after another. A Beta density computed from
log-Gamma functions loses digits at large concentrations: at 10⁴ its error in float32 is 0.01. Here draws are
vectorised, and the density is written in ratios that are near one where the density is large.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Key

_SHIFT = 4.0  # beyond it the series of `stirling_rest` is exact to float32


class ManyBeta(dist.Beta):
    """NumPyro's `Beta` with vectorised draws, and a density that is accurate at large concentrations.

    Draws have no gradient with respect to the concentrations. A value of 0 or 1 is scored as the nearest number inside.

    Args:
        concentration1: a, positive.
        concentration0: b, positive; broadcast against `concentration1`.

    Examples:
        >>> beta = pg.distributions.ManyBeta(jnp.array([1.0, 2.0, 500.0]), 3.0)
        >>> beta.sample(key).shape
        (3,)
        >>> round(float(beta.log_prob(0.5)[0]), 4) == round(float(dist.Beta(1.0, 3.0).log_prob(0.5)), 4)
        True
    """

    reparametrized_params: ClassVar[list[str]] = []

    def sample(self, key: Key[Array, ""] | None, sample_shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Draws, (*sample_shape, *batch), strictly between 0 and 1."""
        assert key is not None
        shape = (*sample_shape, *self.batch_shape)
        pair = [jnp.asarray(c, float) for c in (self.concentration1, self.concentration0)]
        # One key per concentration, so that an element's draw does not depend on how many elements follow it.
        keys, pairs = jax.random.split(key), jnp.stack([jnp.broadcast_to(c, shape) for c in pair])
        log_first, log_second = jax.vmap(log_gamma_variates)(keys, pairs)
        return _inside(jax.nn.sigmoid(log_first - log_second))

    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """The log-density of value, which is broadcast against the batch."""
        a, b = jnp.asarray(self.concentration1), jnp.asarray(self.concentration0)
        x = _inside(jnp.asarray(value, float))
        y, total = 1 - x, a + b
        # log Γ(c) = (c − ½) log c − c + ½ log 2π + rest(c), sorted so that large terms cancel inside the logarithms.
        powers = (a - 0.5) * jnp.log(x * (total / a)) + (b - 0.5) * jnp.log(y * (total / b))
        rest = stirling_rest(a) + stirling_rest(b) - stirling_rest(total)
        return powers - 0.5 * jnp.log(x * y) + 0.5 * jnp.log(total / (2 * jnp.pi)) - rest


def _inside(x: Float[Array, "..."]) -> Float[Array, "..."]:
    limits = jnp.finfo(x.dtype)
    return jnp.clip(x, limits.tiny, 1 - limits.epsneg)


def log_gamma_variates(key: Key[Array, ""], concentration: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Logarithms of Gamma(concentration, 1) variates, by rejection (Marsaglia and Tsang, 2000).

    All elements are tried at once until every one is accepted; at most one in twenty fails a try.

    Args:
        key: a random key.
        concentration: positive, of any shape.

    Returns:
        An array of the same shape.

    Examples:
        >>> pg.distributions.log_gamma_variates(key, jnp.full((4, 2), 3.0)).shape
        (4, 2)
    """
    key_tries, key_boost = jax.random.split(key)
    small = concentration < 1
    d = jnp.where(small, concentration + 1, concentration) - 1 / 3
    c = (9 * d) ** -0.5

    def attempt(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, log_v, done = state
        key, key_normal, key_uniform = jax.random.split(key, 3)
        normal = jax.random.normal(key_normal, d.shape)
        root = 1 + c * normal
        log_new = 3 * jnp.log(jnp.maximum(root, jnp.finfo(root.dtype).tiny))
        bound = 0.5 * normal**2 + d * (1 - jnp.exp(log_new) + log_new)
        taken = (root > 0) & (jnp.log(jax.random.uniform(key_uniform, d.shape)) < bound)
        return key, jnp.where(done, log_v, log_new), done | taken

    start = (key_tries, jnp.zeros_like(d), jnp.zeros(d.shape, bool))
    _, log_v, _ = jax.lax.while_loop(lambda state: ~jnp.all(state[2]), attempt, start)
    # Gamma(c) is Gamma(c + 1) times the c-th root of a uniform number.
    boost = jnp.where(small, -jax.random.exponential(key_boost, d.shape) / concentration, 0.0)
    return jnp.log(d) + log_v + boost


@jax.custom_jvp
def stirling_rest(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The error of Stirling's formula, log Γ(x) − ((x − ½) log x − x + ½ log 2π), which falls like 1/(12 x).

    Args:
        x: positive, of any shape.

    Returns:
        An array of the same shape.

    Examples:
        >>> round(float(pg.distributions.stirling_rest(jnp.array(100.0))), 6)
        0.000833
    """
    large = jnp.maximum(x, _SHIFT)
    # Γ(x) = Γ(x + 4) / (x (x+1) (x+2) (x+3)) moves small arguments to where the series is accurate.
    small = jnp.minimum(x, _SHIFT)
    shifted = small + _SHIFT
    steps = shifted**3 / ((small + 1) * (small + 2) * (small + 3))
    by_shift = _series(shifted) + (small + 0.5) * jnp.log(shifted / small) + jnp.log(steps) - _SHIFT
    return jnp.where(x < _SHIFT, by_shift, _series(large))


def _series(x: Float[Array, "..."]) -> Float[Array, "..."]:
    square = x**-2
    return (1 / 12 - (1 / 360 - (1 / 1260 - square / 1680) * square) * square) / x


@stirling_rest.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """By digamma's series, ψ(x) − log x + 1/(2x), with the same shift."""
    (x,), (tangent,) = primals, tangents
    large = jnp.maximum(x, _SHIFT)
    small = jnp.minimum(x, _SHIFT)
    shifted = small + _SHIFT
    steps = 0.5 / small - 0.5 / shifted - sum(1 / (small + i) for i in range(int(_SHIFT)))
    by_shift = _series_slope(shifted) + jnp.log(shifted / small) + steps
    return stirling_rest(x), tangent * jnp.where(x < _SHIFT, by_shift, _series_slope(large))


def _series_slope(x: Float[Array, "..."]) -> Float[Array, "..."]:
    square = x**-2
    return -(1 / 12 - (1 / 120 - (1 / 252 - square / 240) * square) * square) * square
