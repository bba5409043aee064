"""The mode of every element of a block from values of the density alone, at a few points around it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from popgibbs._typing import Elements
from popgibbs.distributions.normals import floored_cholesky
from popgibbs.proposals.newton import newton_step

_MOST_ROUNDS = 60
_LONGEST = 4.0  # step of the search, in units of its stencil
_LEAST_PRECISION = 0.05  # in the same units
_TOLERANCE = 0.1  # nats that a step may lose
_NEAR = 0.1  # stencils, within which a mode is found
_FITTING = 0.8  # of the width that fits the curvature, and its inverse
_DEEPEST = 1e4  # nats below the best point; what is deeper tells nothing about curvature


class Found(NamedTuple):
    """The mode of each element's log-density."""

    position: Float[Array, "element axis"]
    factor: Float[Array, "element axis axis"]  # of the precision there
    height: Elements  # the log-density there


class _Search(NamedTuple):
    """Where the search for the modes of all elements stands."""

    number: Array  # of rounds
    done: Bool[Array, " element"]
    position: Float[Array, "element axis"]  # the centre of the stencil
    width: Float[Array, "element axis"]  # of the stencil
    factor: Float[Array, "element axis axis"]  # of the precision at the stencil before
    here: Elements  # the log-density at its centre
    best: Float[Array, "element axis"]  # the best point so far
    height: Elements  # its log-density


def mode_by_values(
    log_density: Callable[[Array], Elements], start: Float[Array, "element axis"], width: Float[Array, "element axis"]
) -> Found:
    """The mode of each element that a search from `start` leads to.

    The stencil's width follows the curvature, about one standard deviation in the end. So rounding does not matter, the
    curvature is that of the density's bulk, and factors whose gradients are undefined do no harm.
    """
    size = start.shape[1]
    first, second = np.tril_indices(size, -1)
    axes = np.eye(size)
    offsets = jnp.asarray(np.concatenate([np.zeros((1, size)), axes, -axes, axes[first] + axes[second]]))

    def tried(position: Array) -> Array:
        density = log_density(position)
        return jnp.where(jnp.isnan(density), -jnp.inf, density)

    def improve(state: _Search) -> _Search:
        around = jax.lax.map(lambda offset: tried(state.position + offset * state.width), offsets)
        around = jnp.maximum(around, jnp.max(around, axis=0) - _DEEPEST)
        here, ahead, behind = around[0], around[1 : 1 + size], around[1 + size : 1 + 2 * size]
        curvature = (2 * here - ahead - behind).T
        mixed = (ahead[first] + ahead[second] - around[1 + 2 * size :] - here).T
        precision = jax.vmap(jnp.diag)(curvature)
        precision = precision.at[:, first, second].set(mixed).at[:, second, first].set(mixed)
        factor = floored_cholesky(precision, _LEAST_PRECISION)
        step = newton_step(0.5 * (ahead - behind).T, factor)
        length = jnp.linalg.norm(step, axis=-1, keepdims=True)
        step *= jnp.minimum(1.0, _LONGEST / jnp.maximum(length, 1e-30))
        # A step that went too far is taken back, to the best point that has been seen.
        found = state.position + offsets[jnp.argmax(around, axis=0)] * state.width
        height = jnp.max(around, axis=0)
        is_better = (height >= state.height)[:, None]
        best = jnp.where(is_better, found, state.best)
        went_down = (here < state.height - _TOLERANCE)[:, None]
        position = jnp.where(went_down, best, state.position + step * state.width)
        spread = jnp.clip(jax.lax.rsqrt(jnp.maximum(curvature, 1e-6)), 0.25, 4.0)
        wider = jnp.clip(state.width * jnp.where(went_down, jnp.minimum(spread, 0.5), spread), 1e-6, 1.0)
        fits = jnp.all((wider > _FITTING * state.width) & (wider < state.width / _FITTING), axis=-1)
        stays = state.done | (fits & (length < _NEAR)[:, 0] & ~went_down[:, 0]) | (state.number == _MOST_ROUNDS)

        def unless(held: Array, new: Array, old: Array) -> Array:
            return jnp.where(held.reshape(-1, *[1] * (new.ndim - 1)), old, new)

        return _Search(
            number=state.number + 1,
            done=stays,
            position=unless(stays, position, state.position),
            width=unless(stays, wider, state.width),
            factor=unless(state.done, factor / state.width[..., None], state.factor),
            here=unless(state.done, here, state.here),
            best=best,
            height=jnp.maximum(height, state.height),
        )

    lowest = jnp.full(start.shape[:1], -jnp.inf)
    begin = _Search(
        number=jnp.zeros((), int),
        done=jnp.zeros(start.shape[:1], bool),
        position=start,
        width=width,
        factor=jnp.zeros((*start.shape, size)),
        here=lowest,
        best=start,
        height=lowest,
    )
    found = jax.lax.while_loop(lambda state: ~jnp.all(state.done), improve, begin)
    return Found(found.position, found.factor, found.here)
