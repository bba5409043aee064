"""Newton's method on the factors of every element of a block at once."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from popgibbs.distributions.normals import floored_cholesky, solve_triangular
from popgibbs.model import Coordinates

_LEAST_PRECISION = 0.05  # in units of the prior: where the curvature is not positive, the Gaussian is this broad
_DISTANCE = 1.5  # standard deviations from the mode at which the shape of a density is measured
_LENGTHS = (1.0, 0.2, 5.0)  # of which the best is taken; the first of equal ones
_ARRIVED = 0.02  # standard deviations, below which a step is not taken
_LONGEST_STEP = 4.0  # of Newton's method, in prior scales, before it is lengthened


def gradient_of(coordinates: Coordinates) -> Callable[[Array], Array]:
    """The gradient of each element's log-density; elements are independent, so that of their sum holds them all."""
    return jax.grad(lambda at: jnp.sum(coordinates.log_density(at)))


def _quadratic(coordinates: Coordinates) -> Callable[[Array], tuple[Array, Array]]:
    """The slope of each element's log-density at a position, and the Cholesky factor of the precision there."""
    gradient = gradient_of(coordinates)

    def slope_and_factor(position: Array) -> tuple[Array, Array]:
        slope, along = jax.linearize(gradient, position)
        axes = jnp.eye(coordinates.size)
        # A loop, because unrolled it takes minutes to compile.
        hessian = jax.lax.map(lambda axis: along(jnp.broadcast_to(axis, position.shape)), axes)
        precision = -jnp.moveaxis(hessian, 0, -1)
        precision = jnp.where(jnp.isfinite(precision), precision, 0.0)
        return slope, floored_cholesky(0.5 * (precision + jnp.swapaxes(precision, -1, -2)), _LEAST_PRECISION)

    return slope_and_factor


def newton_step(slope: Array, factor: Array) -> Array:
    """The step to the mode of a Gaussian with this slope and factor of the precision."""
    return solve_triangular(factor, solve_triangular(factor, slope), transposed=True)


def gaussian_moments(
    coordinates: Coordinates,
) -> tuple[Float[Array, "element axis"], Float[Array, "element axis axis"]]:
    """The mean of each element's conditional, and the Cholesky factor of its precision, where they are Gaussian."""
    slope_and_factor = _quadratic(coordinates)
    shape = (coordinates.num_elements, coordinates.size)

    def step(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        position, _ = state
        slope, factor = slope_and_factor(position)
        return position + newton_step(slope, factor), factor

    # The second step removes what rounding has left of the first, if the mean is far from the prior's.
    return jax.lax.fori_loop(0, 2, step, (jnp.zeros(shape), jnp.zeros((*shape, coordinates.size))))


class _Climb(NamedTuple):
    """Where Newton's method stands."""

    number: Array  # of steps
    done: Bool[Array, " element"]
    position: Float[Array, "element axis"]
    factor: Float[Array, "element axis axis"]


def mode_and_precision(
    coordinates: Coordinates, num_steps: int, start: Array | None = None
) -> tuple[Float[Array, "element axis"], Float[Array, "element axis axis"]]:
    """The mode of each element's conditional, nearly, and the Cholesky factor of the precision there.

    By default the search starts at the prior's centre. A start must depend neither on the block's old value nor on other
    particles. An element that has arrived stays where it is, however long others take.
    """
    slope_and_factor = _quadratic(coordinates)

    def newton(state: _Climb) -> _Climb:
        slope, factor = slope_and_factor(state.position)
        step = newton_step(slope, factor)
        step *= jnp.minimum(1.0, _LONGEST_STEP / jnp.maximum(jnp.linalg.norm(step, axis=-1, keepdims=True), 1e-30))
        step = jnp.where(jnp.isfinite(step), step, 0.0)

        def tried(length: Array) -> Array:
            density = coordinates.log_density(state.position + length * step)
            return jnp.where(jnp.isnan(density), -jnp.inf, density)

        # Newton's step is too long where the curvature is small, and too short where a density falls exponentially, as
        # that of a log-scale does.
        lengths = jnp.asarray(_LENGTHS)
        densities = jax.lax.map(tried, lengths)
        length = jnp.where(jnp.max(densities, axis=0) > -jnp.inf, lengths[jnp.argmax(densities, axis=0)], 0.0)
        step *= length[:, None]
        in_deviations = jnp.linalg.norm(jnp.einsum("eij,ei->ej", factor, step), axis=-1)
        # The last round computes the factor only, so that its program is compiled once.
        done = state.done | (in_deviations < _ARRIVED) | (state.number == num_steps)
        return _Climb(
            number=state.number + 1,
            done=done,
            position=jnp.where(done[:, None], state.position, state.position + step),
            factor=jnp.where(state.done[:, None, None], state.factor, factor),
        )

    shape = (coordinates.num_elements, coordinates.size)
    begin = jnp.zeros(shape) if start is None else start
    factors = jnp.zeros((*shape, coordinates.size))
    state = _Climb(jnp.zeros((), int), jnp.zeros(shape[:1], bool), begin, factors)
    found = jax.lax.while_loop(lambda state: ~jnp.all(state.done), newton, state)
    return found.position, found.factor


def local_features(
    coordinates: Coordinates, loc: Float[Array, "element axis"], factor: Float[Array, "element axis axis"]
) -> Float[Array, "element feature"]:
    """What the density around a Gaussian looks like to one who corrects it: four numbers for each axis.

    They are the location, the logarithm of the scale, and the gradient at one and a half standard deviations to either
    side, along the axes in which the Gaussian is standard Normal: its odd and even part, zero for the Gaussian itself.
    """
    gradient = gradient_of(coordinates)

    def along(axis: Array) -> tuple[Array, Array]:
        step = _DISTANCE * solve_triangular(factor, jnp.broadcast_to(axis, loc.shape), transposed=True)
        ahead, behind = (jnp.sum(gradient(loc + sign * step) * step, axis=-1) / _DISTANCE for sign in (1.0, -1.0))
        return 0.5 * (ahead + behind), 0.5 * (ahead - behind) / _DISTANCE + 1.0

    odd, even = jax.lax.map(along, jnp.eye(coordinates.size))
    log_scale = -jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1))
    features = jnp.concatenate([loc, log_scale, odd.T, even.T], axis=-1)
    return jnp.where(jnp.isfinite(features), features, 0.0)
