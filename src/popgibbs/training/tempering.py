"""Tempered training: a likelihood that starts flat and sharpens as fast as the sampler can follow.

With p(x | z)^β in place of the likelihood, a small β leaves every particle some weight while proposals are untrained. For
Gaussian noise of scale σ it is the same as noise of scale σ/√β.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

SMOOTHING = 0.98


@dataclass(frozen=True, kw_only=True)
class Tempering:
    """A schedule of β in the tempered likelihood p(x | z)^β, driven by the effective sample size of the blocks.

    After each step, with e the ESS fraction of the worst block and log β kept in [log start, 0],

        log β += rate · clip(e / min_ess_fraction − 1, −1, 1)

    The ESS fraction of a block is ESS/L of the weights in its gradient: before acceptance, by element where they split,
    averaged over elements, sweeps and recent steps.

    Args:
        start: The first and least β, in (0, 1].
        min_ess_fraction: The ESS fraction, between 0 and 1, above which β rises and below which it falls.
        rate: The largest change of log β per step.

    Raises:
        ValueError: An argument is out of range.

    Examples:
        >>> pg.Tempering(start=1e-3)  # for sampler.fit(..., tempering=...)
        Tempering(start=0.001, min_ess_fraction=0.3, rate=0.002)
    """

    start: float
    min_ess_fraction: float = 0.3
    rate: float = 2e-3

    def __post_init__(self) -> None:
        if not 0 < self.start <= 1:
            raise ValueError(f"Tempering(start={self.start}) must be in (0, 1]; it is the power of the likelihood")
        if not 0 < self.min_ess_fraction < 1:
            raise ValueError(f"Tempering(min_ess_fraction={self.min_ess_fraction}) must be between 0 and 1")
        if self.rate <= 0:
            raise ValueError(f"Tempering(rate={self.rate}) must be positive")

    def advance(self, temper: "Temper", ess_fractions: Float[Array, " block"]) -> "Temper":
        """The state after a step in which the blocks had these ESS fractions."""
        smooth = SMOOTHING * temper.ess_fractions + (1 - SMOOTHING) * ess_fractions
        surplus = jnp.clip(jnp.min(smooth) / self.min_ess_fraction - 1, -1.0, 1.0)
        log_beta = jnp.clip(temper.log_beta + self.rate * surplus, jnp.log(self.start), 0.0)
        return Temper(log_beta, smooth)


class Temper(NamedTuple):
    """The state of a tempered run."""

    log_beta: Array
    ess_fractions: Array  # by block, smoothed over steps

    @classmethod
    def begin(cls, tempering: Tempering | None, num_blocks: int) -> "Temper":
        start = 1.0 if tempering is None else tempering.start
        return cls(jnp.log(start), jnp.zeros(num_blocks))
