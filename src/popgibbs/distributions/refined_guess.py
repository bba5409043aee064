"""Proposals that are refined after a network has made a guess."""

from typing import Any

import numpyro.distributions as dist
from jax.lax import stop_gradient
from jaxtyping import Array, Float


class RefinedGuess(dist.Distribution):
    """Draws and densities of `refined`; `guess`, from which it was made, learns from the same values.

    Steps that find a mode forget where they began, so the density of what they end in teaches nothing to the network that
    made the guess. Here the gradient of a log-probability is that of both densities, its value that of `refined` alone.
    """

    def __init__(self, refined: Any, guess: Any):
        self.refined, self.guess = refined, guess
        super().__init__(refined.batch_shape, refined.event_shape)

    @property
    def support(self) -> Any:
        return self.refined.support

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Array:
        return self.refined.sample(key, sample_shape)

    def log_prob(self, value: Any, intermediates: Any = None) -> Float[Array, "..."]:
        del intermediates
        lesson = self.guess.log_prob(stop_gradient(value))
        return self.refined.log_prob(value) + (lesson - stop_gradient(lesson))
