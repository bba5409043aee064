"""What an experiment is, to the command line and to the protocols of evaluation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from popgibbs.api import APG, Fit
from popgibbs.posterior import Posterior
from popgibbs.tempering import Tempering
from popgibbs.typing import PRNGKey, Values


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a variant is trained by default."""

    num_steps: int
    learning_rate: float
    num_sweeps: int
    num_particles: int
    batch_size: int
    num_points: int
    tempering: Tempering | None = None

    def optimiser(self, num_steps: int) -> optax.GradientTransformation:
        """Adam with a rate that falls to zero along a cosine, so that the noise of the gradient averages out."""
        return optax.adam(optax.cosine_decay_schedule(self.learning_rate, num_steps))


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One of the samplers of an experiment."""

    training: Training
    one_shot: bool = False  # the initial proposal alone (RWS), which spends the budget of all sweeps on particles

    def budget(self, num_sweeps: int, num_particles: int) -> dict[str, int]:
        """The sweeps and particles that the variant makes of a budget."""
        if self.one_shot:
            return {"num_sweeps": 0, "num_particles": (num_sweeps + 1) * num_particles}
        return {"num_sweeps": num_sweeps, "num_particles": num_particles}


class Evaluated(NamedTuple):
    """What a measure may look at."""

    apg: APG
    key: PRNGKey
    instances: Values
    truth: Values
    posterior: Posterior


@dataclass(frozen=True)
class Measure:
    """A number of an experiment's own, and how a table shows it."""

    label: str
    of: Callable[[Evaluated], Any]
    show: Callable[[Any], str]


class Drawing(NamedTuple):
    """One sample of a mixture as it is drawn."""

    points: np.ndarray  # (point, 2)
    labels: np.ndarray  # (point,), the cluster of each
    centres: np.ndarray  # (cluster, 2)
    outlines: np.ndarray  # (cluster, place, 2), the outline of each cluster


def check_plane(instance: Values, where: str) -> None:
    """A check of experiments whose instances are points in the plane."""
    shape = np.shape(instance["x"])
    if len(shape) != 2 or shape[1] != 2:
        raise ValueError(f"{where}: 'x' has shape {shape}; the mixture takes points in the plane, shape (points, 2)")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A model with its simulator and its samplers."""

    name: str
    about: str
    build: Callable[[str, PRNGKey], APG]  # of a variant, with fresh networks
    variants: Mapping[str, Variant]  # the default first
    simulate: Callable[[PRNGKey, int], tuple[Values, Values]]  # an instance of a size and its generating latents
    check: Callable[[Values, str], None]  # raises ValueError with a sentence about an instance that does not fit
    measures: Mapping[str, Measure]
    draw: Callable[[Any, np.ndarray, Mapping[str, np.ndarray]], Drawing]  # by the model, points and one sample
    num_points: int  # of a held-out instance, by default
    num_populations: int  # of a held-out instance, by default
    shipped: Path  # trained samplers in the package, a directory a variant
    # The model that the generating latents belong to, where a learned one has coordinates of its own.
    generating: Callable[[Any], Any] | None = None
    reconstruct: Callable[[Any, Mapping[str, np.ndarray]], np.ndarray] | None = (
        None  # the points that a sample stands for
    )

    @property
    def default(self) -> str:
        return next(iter(self.variants))

    def fit(self, key: PRNGKey, variant: str, num_steps: int, num_points: int | None = None, **options: Any) -> Fit:
        """Train a fresh sampler as the experiment does; `options` are those of `APG.fit`."""
        training = self.variants[variant].training
        key_build, key_fit = jax.random.split(key)
        size = num_points or training.num_points
        return self.build(variant, key_build).fit(
            key_fit,
            lambda key: self.simulate(key, size)[0],
            num_steps=num_steps,
            num_sweeps=training.num_sweeps,
            num_particles=training.num_particles,
            batch_size=training.batch_size,
            optimiser=training.optimiser(num_steps),
            tempering=training.tempering,
            **options,
        )
