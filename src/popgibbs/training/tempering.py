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
    """β starts at `start` and rises, by at most `rate` in log β a step, while every block keeps its `share`.

    A block's share is that of the particles that are effective in its gradient: ESS/L of the incremental weights before
    acceptance, element by element where they split, averaged over elements, sweeps and recent steps. Where the worst
    block's share is below, β falls back.
    """

    start: float
    share: float = 0.3
    rate: float = 2e-3

    def __post_init__(self) -> None:
        if not 0 < self.start <= 1:
            raise ValueError(f"Tempering(start={self.start}) must lie in (0, 1]; it is the power of the likelihood")
        if not 0 < self.share < 1:
            raise ValueError(f"Tempering(share={self.share}) must lie between 0 and 1")
        if self.rate <= 0:
            raise ValueError(f"Tempering(rate={self.rate}) must be positive")

    def advance(self, temper: "Temper", shares: Float[Array, " block"]) -> "Temper":
        """β after a step in which the blocks had these shares."""
        smooth = SMOOTHING * temper.shares + (1 - SMOOTHING) * shares
        surplus = jnp.clip(jnp.min(smooth) / self.share - 1, -1.0, 1.0)
        log_beta = jnp.clip(temper.log_beta + self.rate * surplus, jnp.log(self.start), 0.0)
        return Temper(log_beta, smooth)


class Temper(NamedTuple):
    """The state of a tempered run."""

    log_beta: Array
    shares: Array  # by block, smoothed over steps

    @classmethod
    def begin(cls, tempering: Tempering | None, num_blocks: int) -> "Temper":
        start = 1.0 if tempering is None else tempering.start
        return cls(jnp.log(start), jnp.zeros(num_blocks))
