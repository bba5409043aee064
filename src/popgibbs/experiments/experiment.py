"""What an experiment is, to the command line and to the protocols of evaluation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optax

from popgibbs.api import APG
from popgibbs.typing import PRNGKey, Values


@dataclass(frozen=True, kw_only=True)
class Training:
    """How an experiment is trained by default."""

    num_steps: int
    learning_rate: float
    num_sweeps: int
    num_particles: int
    batch_size: int
    num_points: int

    def optimiser(self, num_steps: int) -> optax.GradientTransformation:
        """Adam with a rate that falls to zero along a cosine, so that the noise of the gradient averages out."""
        return optax.adam(optax.cosine_decay_schedule(self.learning_rate, num_steps))


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A model with its simulator and its samplers."""

    name: str
    about: str
    build: Callable[[str, PRNGKey], APG]  # of a variant, with fresh networks
    variants: tuple[str, ...]  # the default first
    simulate: Callable[[PRNGKey, int], tuple[Values, Values]]  # an instance of a size and its generating latents
    training: Training
    check: Callable[[Values, str], None]  # raises ValueError with a sentence about an instance that does not fit
    measures: Mapping[str, Callable[[APG, PRNGKey], Any]]  # numbers of its own, by name
    shipped: Path  # trained samplers in the package, a directory a variant
