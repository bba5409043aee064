"""What an experiment is, to the command line and to the protocols of evaluation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import numpy as np
import optax

from popgibbs._typing import PRNGKey, UpdateModel, Values
from popgibbs.apg import APG, SAMPLE_BATCH, Fit
from popgibbs.posterior import Posterior
from popgibbs.training import Tempering

TRAINED = Path(str(files("popgibbs"))) / "paper" / "trained"
"""Trained samplers in the package, one directory per experiment."""

Size: TypeAlias = Mapping[str, int]
"""How large an instance is, by what it consists of: `{"points": 100}`."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a variant is trained by default."""

    num_steps: int
    learning_rate: float
    num_sweeps: int
    num_particles: int
    batch_size: int
    size: Size
    tempering: Tempering | None = None
    update_model: UpdateModel = "every_block"
    checkpoint_every: int = 1000
    snapshots: bool = False  # a picture of held-out instances with every checkpoint, for runs of hours

    @property
    def spends(self) -> dict[str, float | str]:
        """What a step spends, as it is written about a run."""
        return {
            "learning_rate": self.learning_rate,
            "num_sweeps": self.num_sweeps,
            "num_particles": self.num_particles,
            "batch_size": self.batch_size,
            "update_model": self.update_model,
        }

    def optimiser(self) -> optax.GradientTransformation:
        """Adam with a rate that falls to zero along a cosine, so that the noise of the gradient averages out."""
        return optax.adam(optax.cosine_decay_schedule(self.learning_rate, self.num_steps))


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
    posterior: Posterior  # of equally weighted particles, unless the measure is taken after every sweep


@dataclass(frozen=True)
class Measure:
    """A number of an experiment's own, and how a table shows it."""

    label: str
    of: Callable[[Evaluated], Any]
    show: Callable[[Any], str]
    by_sweep: bool = False  # a number an instance, taken after every sweep


class Drawing(Protocol):
    """One sample as it is drawn. Every kind of drawing knows how pictures of it are saved."""

    @staticmethod
    def save(drawings: "Sequence[Mapping[str, Any]]", path: Path) -> None:
        """Write a picture of every instance's samples by title."""
        ...


class MixtureDrawing(NamedTuple):
    """One sample of a mixture in the plane."""

    points: np.ndarray  # (point, 2)
    labels: np.ndarray  # (point,), the cluster of each
    centres: np.ndarray  # (cluster, 2)
    outlines: np.ndarray  # (cluster, place, 2), the outline of each cluster

    @staticmethod
    def save(drawings: "Sequence[Mapping[str, MixtureDrawing]]", path: Path) -> None:
        from popgibbs.paper.plots.figures import mixture_samples, save  # here, because Matplotlib is slow to import

        save(mixture_samples(drawings), path)


class Film(NamedTuple):
    """One sample of a video."""

    frames: np.ndarray  # (frame, row, column), between 0 and 1
    rebuilt: np.ndarray  # the same, as the sample has them
    boxes: np.ndarray  # (frame, object, 4): left, top, width, height in pixels

    @staticmethod
    def save(drawings: "Sequence[Mapping[str, Film]]", path: Path) -> None:
        """A strip of frames, or an animation if the file is a GIF."""
        from popgibbs.paper.plots import figures, films  # here, because Matplotlib is slow to import

        if path.suffix.lower() == ".gif":
            films.save_animation(drawings, path)
        else:
            figures.save(films.strip(drawings), path)


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
    data: Mapping[str, str]  # the plate of each array of an instance, as `APG` takes it
    build: Callable[[str, PRNGKey, Size], APG]  # of a variant, with fresh networks, for instances of a size
    variants: Mapping[str, Variant]  # the default first
    simulate: Callable[..., tuple[Values, Values]]  # with a key and a size by keyword: an instance, what generated it
    simulate_held_out: Callable[..., tuple[Values, Values]] | None = None  # where those are made of other things
    check: Callable[[Values, str], None]  # raises ValueError with a sentence about an instance that does not fit
    check_size: Callable[[Size], None] = lambda size: None  # the same about a size
    measures: Mapping[str, Measure]
    draw: Callable[[Any, Values, Mapping[str, np.ndarray]], Drawing]  # by the model, an instance, one sample
    size: Size  # of a held-out instance, by default; its names are options of the command line
    instances_are: str = "instances"  # what people call them, which is an option of the command line too
    num_instances: int = 1000  # that are held out, by default
    num_populations: int  # of a held-out instance, by default
    batch_size: int = SAMPLE_BATCH  # instances that are sampled at once
    most_particles: int | None = None  # of all these instances, where many would not fit into memory
    shipped: Path  # trained samplers in the package, a directory a variant
    # From the learned model to the one whose latents generated the instances, if they are latents of a model at all.
    generating: Callable[[Any], Any] | None = None
    is_generated: bool = False  # whether the instances are draws of the model that is sampled
    reconstruct: Callable[[Any, Mapping[str, np.ndarray]], Values] | None = None  # the instance a sample stands for

    @property
    def default(self) -> str:
        return next(iter(self.variants))

    def sized(self, usual: Size, **sizes: int | None) -> Size:
        """A usual size with what is given in its place."""
        given = {name: value for name, value in sizes.items() if value is not None}
        if unknown := [name for name in given if name not in self.size]:
            raise ValueError(f"instances of '{self.name}' have no {unknown[0]}; they have {' and '.join(self.size)}")
        size = {**usual, **given}
        self.check_size(size)
        return size

    def instances_at_once(self, num_particles: int) -> int:
        """How many instances of that many particles are sampled at once."""
        fitting = self.batch_size if self.most_particles is None else self.most_particles // num_particles
        return max(min(self.batch_size, fitting), 1)

    def fit(self, key: PRNGKey, variant: str, training: Training, **options: Any) -> Fit:
        """Train a fresh sampler; `options` are those of `APG.fit`."""
        key_build, key_fit = jax.random.split(key)
        return self.build(variant, key_build, training.size).fit(
            key_fit,
            lambda key: self.simulate(key, **training.size)[0],
            num_steps=training.num_steps,
            num_sweeps=training.num_sweeps,
            num_particles=training.num_particles,
            batch_size=training.batch_size,
            optimiser=training.optimiser(),
            tempering=training.tempering,
            update_model=training.update_model,
            **options,
        )
