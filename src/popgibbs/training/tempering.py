"""Training on a likelihood that starts flat and is sharpened as fast as the sampler can follow.

With p(x | z)^β in place of the likelihood, a small β leaves every particle some weight when proposals know nothing yet.
For Gaussian noise it is the same as noise of scale σ/√β.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

SMOOTHING = 0.98


@dataclass(frozen=True, kw_only=True)
class Tempering:
    """β starts at `start` and rises, by at most `rate` in log β per step, while every block keeps `min_ess_fraction`.

    That is the fraction of particles that count in a block's gradient: ESS/L of the incremental weights before
    acceptance, by element where they split, averaged over elements, sweeps and recent steps. While the worst block is
    below the minimum, β falls.
    """

    start: float
    min_ess_fraction: float = 0.3
    rate: float = 2e-3

    def __post_init__(self) -> None:
        if not 0 < self.start <= 1:
            raise ValueError(f"Tempering(start={self.start}) must lie in (0, 1]; it is the power of the likelihood")
        if not 0 < self.min_ess_fraction < 1:
            raise ValueError(f"Tempering(min_ess_fraction={self.min_ess_fraction}) must lie between 0 and 1")
        if self.rate <= 0:
            raise ValueError(f"Tempering(rate={self.rate}) must be positive")

    def advance(self, temper: "Temper", ess_fractions: Float[Array, " block"]) -> "Temper":
        """β after a step in which the blocks had these fractions of effective particles."""
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
