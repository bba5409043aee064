"""Particles: a value for every latent, with the log-probabilities of all factors."""

import equinox as eqx
from jaxtyping import Array

from popgibbs._typing import LogProbs, Values
from popgibbs.model.target import total


class Particle(eqx.Module):
    """Values of all latents and the log-probabilities of all factors at them, so that no state is scored twice."""

    latents: Values
    log_probs: LogProbs

    @property
    def log_joint(self) -> Array:
        return total(self.log_probs)
