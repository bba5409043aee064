"""A Gaussian at the mode of the model's own conditional as a proposal, which needs no training."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from popgibbs._random import unrolled
from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.distributions.normals import PrecisionNormal, floored_cholesky, solve_triangular
from popgibbs.model import Conditional, Coordinates
from popgibbs.proposals.base import BoundKernel, Kernel

_LEAST_PRECISION = 0.05  # in units of the prior: where the curvature is not positive, the Gaussian is this broad
_LONGEST_STEP = 4.0  # of Newton's method, in prior scales
_WIDER = 3.0  # the wide part's standard deviation, relative to the Gaussian's


class Laplace(Kernel):
    """A Gaussian around the mode of p(z_b | x, z_-b), found by Newton's method; it needs no training.

    Every element of the block gets its own Gaussian, in coordinates that NumPyro's bijections map to the sites' supports.
    A small share of draws is three times as wide, so that tails which are heavier than Gaussian are reached; use
    `Metropolis()` with it, or `Laplace(wide=0.0)` with `Reweight()`. The first draw uses only the factors whose sites
    exist at that point.

    Args:
        num_steps: Newton steps per update, each limited in length and shortened where it would lower the density.
        wide: The share of draws that are three times as wide.

    Examples:
        >>> block = pg.Block("mu", proposal=pg.Laplace(), move=pg.Metropolis())
        >>> sampler = pg.APG(model, data={"x": "points"}, blocks=[block], example=instances[0])
    """

    from_model: ClassVar[bool] = True
    takes_any_key: ClassVar[bool] = True

    num_steps: int = eqx.field(static=True, default=5)
    wide: float = eqx.field(static=True, default=0.1)

    @property
    def summary(self) -> str:
        return f"Laplace, {self.num_steps} Newton steps"

    def bind(self, key: PRNGKey, conditional: Conditional) -> "BoundGaussian":
        coordinates = Coordinates(conditional)  # pyright: ignore[reportArgumentType]
        loc, factor = stop_gradient(mode_and_precision(coordinates, self.num_steps))
        return BoundGaussian(key, coordinates, loc, factor, self.wide)


class BoundGaussian(BoundKernel):
    """One Gaussian per element, with a wide part, by the Cholesky factors of their precisions."""

    def __init__(self, key: PRNGKey, coordinates: Coordinates, loc: Array, factor: Array, wide: float):
        self.key, self.coordinates, self.wide = key, coordinates, wide
        real = coordinates.conditional.real[:, None]
        self.loc = jnp.where(real, loc, 0.0)  # padded elements have no factors
        self.factor = jnp.where(real[..., None], factor, jnp.eye(loc.shape[1]))

    def draw(self) -> tuple[Values, Elements]:
        key_noise, key_wide = jax.random.split(unrolled(self.key))
        noise = jax.random.normal(key_noise, self.loc.shape, self.loc.dtype)
        if self.wide:
            is_wide = jax.random.uniform(key_wide, self.loc.shape[:1]) < self.wide
            noise *= jnp.where(is_wide, _WIDER, 1.0)[:, None]
        position = self.loc + solve_triangular(self.factor, noise, transposed=True)
        return self.coordinates.values(position), self._log_q(position)

    def score(self, values: Values) -> Elements:
        return self._log_q(self.coordinates.position(values))

    def _log_q(self, position: Float[Array, "element axis"]) -> Elements:
        def log_normal(widening: float) -> Elements:
            return jax.vmap(lambda loc, factor, at: PrecisionNormal(loc, factor / widening).log_prob(at))(
                self.loc, self.factor, position
            )

        log_q = log_normal(1.0)
        if self.wide:
            log_q = jnp.logaddexp(jnp.log1p(-self.wide) + log_q, jnp.log(self.wide) + log_normal(_WIDER))
        return jnp.where(self.coordinates.conditional.real, log_q - self.coordinates.log_volume(position), 0.0)


def mode_and_precision(
    coordinates: Coordinates, num_steps: int
) -> tuple[Float[Array, "element axis"], Float[Array, "element axis axis"]]:
    """The mode of each element's conditional, nearly, and the Cholesky factor of the precision there.

    The search starts at the prior's centre, so that it depends neither on the block's old value nor on other particles.
    """

    def gradient(position: Array) -> Array:
        # Elements are independent, so the gradient of their sum holds that of each.
        return jax.grad(lambda at: jnp.sum(coordinates.log_density(at)))(position)

    def factor_at(position: Array) -> Array:
        def column(axis: Array) -> Array:
            return jax.jvp(gradient, (position,), (jnp.broadcast_to(axis, position.shape),))[1]

        hessian = jax.lax.map(column, jnp.eye(coordinates.size))  # a loop: unrolled, it takes minutes to compile
        precision = -jnp.moveaxis(hessian, 0, -1)
        precision = jnp.where(jnp.isfinite(precision), precision, 0.0)
        return floored_cholesky(0.5 * (precision + jnp.swapaxes(precision, -1, -2)), _LEAST_PRECISION)

    def newton(_: Any, position: Array) -> Array:
        factor, slope = factor_at(position), gradient(position)
        step = solve_triangular(factor, solve_triangular(factor, slope), transposed=True)
        step *= jnp.minimum(1.0, _LONGEST_STEP / jnp.maximum(jnp.linalg.norm(step, axis=-1, keepdims=True), 1e-30))
        step = jnp.where(jnp.isfinite(step), step, 0.0)
        here = coordinates.log_density(position)
        for _ in range(2):
            worse = ~(coordinates.log_density(position + step) >= here - 1e-3)
            step = jnp.where(worse[:, None], 0.3 * step, step)
        return position + step

    start = jnp.zeros((coordinates.num_elements, coordinates.size))
    mode = jax.lax.fori_loop(0, num_steps, newton, start)
    return mode, factor_at(mode)
