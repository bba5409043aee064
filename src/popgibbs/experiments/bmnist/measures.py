"""How well videos are reconstructed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from popgibbs.experiments.bmnist.images import compose
from popgibbs.experiments.experiment import Evaluated


def rebuild(
    model: Any, what: Float[Array, "digit 10"], where: Float[Array, "time digit 2"]
) -> Float[Array, "time 96 96"]:
    """The frames that a sample stands for."""
    images = model.decode(what)
    return jax.vmap(lambda positions: compose(images, positions))(where)


def squared_error(evaluated: Evaluated) -> np.ndarray:
    """Of every video, the squared error of a frame summed over its pixels, by the particles' own frames.

    The error of each particle is averaged, with its weight: the error of the mean frame would reward blur.
    """
    model = evaluated.apg.built.model

    @jax.jit
    def of_video(frames: Array, what: Array, where: Array, weights: Array) -> Array:
        def of_particle(sample: tuple[Array, Array]) -> Array:
            return jnp.mean(jnp.sum((rebuild(model, *sample) - frames) ** 2, axis=(1, 2)))

        # A population after another, a particle after another: frames of all of them would not fit into memory.
        errors = jax.lax.map(of_particle, jax.tree.map(jnp.concatenate, (what, where)))
        return jnp.sum(weights.reshape(-1) * errors) / jnp.sum(weights)

    posterior, weights = evaluated.posterior, evaluated.posterior.weights
    errors = []
    for i, frames in enumerate(evaluated.instances["frames"]):
        samples = posterior[i]
        errors.append(of_video(frames, samples["what"], samples["where"], weights[i]))
    return np.array(errors)
