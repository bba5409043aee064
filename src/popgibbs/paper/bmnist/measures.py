"""The error of reconstructed videos."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from popgibbs.paper.bmnist.images import compose
from popgibbs.paper.experiment import Evaluated


def rebuild(
    model: Any, what: Float[Array, "digit 10"], where: Float[Array, "time digit 2"]
) -> Float[Array, "time 96 96"]:
    """The frames that a sample reconstructs."""
    images = model.decode(what)
    return jax.vmap(lambda positions: compose(images, positions))(where)


def squared_error(evaluated: Evaluated) -> np.ndarray:
    """The squared error per frame of every video, summed over pixels.

    It is the weighted mean of the particles' own errors: the error of the mean frame would reward blur.
    """
    posterior, weights = evaluated.posterior, evaluated.posterior.weights
    errors = []
    for i, frames in enumerate(evaluated.instances["frames"]):
        samples = posterior[i]
        # A failed video, whose weights are all zero, counts with equal weights.
        shares = weights[i] if weights[i].any() else np.ones_like(weights[i])
        of_particles = _errors(evaluated.apg.built.model, frames, samples["what"], samples["where"])
        errors.append(np.average(of_particles, weights=shares.reshape(-1)))
    return np.array(errors)


@eqx.filter_jit
def _errors(model: Any, frames: Any, what: Any, where: Any) -> Float[Array, " particle"]:
    def one(sample: tuple[Array, Array]) -> Array:
        return jnp.mean(jnp.sum((rebuild(model, *sample) - frames) ** 2, axis=(1, 2)))

    # One particle at a time: the frames of all of them would not fit into memory.
    return jax.lax.map(one, jax.tree.map(jnp.concatenate, (what, where)))
