"""The interface between an experiment and the code that trains, evaluates and draws it."""

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
"""The size of an instance by the name of its parts: `{"points": 100}`."""


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
        """The settings of one training step, as a run's description has them."""
        return {
            "learning_rate": self.learning_rate,
            "num_sweeps": self.num_sweeps,
            "num_particles": self.num_particles,
            "batch_size": self.batch_size,
            "update_model": self.update_model,
        }

    def optimiser(self) -> optax.GradientTransformation:
        """Adam with a learning rate that falls to zero along a cosine, so that gradient noise averages out."""
        return optax.adam(optax.cosine_decay_schedule(self.learning_rate, self.num_steps))


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One of the samplers of an experiment."""

    training: Training
    one_shot: bool = False  # the initial proposal alone (RWS), which spends the budget of all sweeps on particles

    def budget(self, num_sweeps: int, num_particles: int) -> dict[str, int]:
        """The sweeps and particles that the variant uses for a budget."""
        if self.one_shot:
            return {"num_sweeps": 0, "num_particles": (num_sweeps + 1) * num_particles}
        return {"num_sweeps": num_sweeps, "num_particles": num_particles}


class Evaluated(NamedTuple):
    """The inputs of a measure."""

    apg: APG
    key: PRNGKey
    instances: Values
    truth: Values
    posterior: Posterior  # resampled to equal weights, unless the measure is taken after every sweep


@dataclass(frozen=True)
class Measure:
    """A number that one experiment defines, and how a table shows it."""

    label: str
    of: Callable[[Evaluated], Any]
    show: Callable[[Any], str]
    by_sweep: bool = False  # one number per instance, taken after every sweep


class Drawing(Protocol):
    """A picture of one sample. Every kind of drawing knows how to save itself."""

    @staticmethod
    def save(drawings: "Sequence[Mapping[str, Any]]", path: Path) -> None:
        """Write one picture with the samples of every instance, by title."""
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
    rebuilt: np.ndarray  # the same frames, reconstructed from the sample
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
    """Check an instance that must consist of points in the plane; `where` begins the error message."""
    shape = np.shape(instance["x"])
    if len(shape) != 2 or shape[1] != 2:
        raise ValueError(f"{where}: 'x' has shape {shape}; the mixture takes points in the plane, shape (points, 2)")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A model with its simulator and its samplers."""

    name: str
    about: str
    data: Mapping[str, str]  # the plate of each array of an instance, as for `APG`
    build: Callable[[str, PRNGKey, Size], APG]  # a variant with fresh networks, for instances of a size
    variants: Mapping[str, Variant]  # the default first
    simulate: Callable[..., tuple[Values, Values]]  # (key, **size) to an instance and the latents that generated it
    simulate_held_out: Callable[..., tuple[Values, Values]] | None = None  # if held-out instances need other sources
    check: Callable[[Values, str], None]  # raises ValueError for an instance that does not fit the model
    check_size: Callable[[Size], None] = lambda size: None  # the same for a size
    measures: Mapping[str, Measure]
    draw: Callable[[Any, Values, Mapping[str, np.ndarray]], Drawing]  # (model, instance, one sample) to a drawing
    size: Size  # default for held-out instances; its names are options of the command line
    instances_are: str = "instances"  # the plural users know, also an option of the command line
    num_instances: int = 1000  # default number of held-out instances
    num_populations: int  # default number of populations per held-out instance
    batch_size: int = SAMPLE_BATCH  # instances that are sampled at once
    most_particles: int | None = None  # limit over all instances of a batch, if more would not fit into memory
    shipped: Path  # trained samplers in the package, one directory per variant
    # From the learned model to the one whose latents generated the instances, if they come from a model's latents.
    generating: Callable[[Any], Any] | None = None
    is_generated: bool = False  # whether the instances are draws from the model that is sampled
    reconstruct: Callable[[Any, Mapping[str, np.ndarray]], Values] | None = None  # the instance that a sample explains

    @property
    def default(self) -> str:
        return next(iter(self.variants))

    def check_variant(self, variant: str) -> None:
        """Refuse a variant that the experiment does not have."""
        if variant not in self.variants:
            raise ValueError(f"'{self.name}' has no variant '{variant}'; it has {', '.join(self.variants)}")

    def sized(self, usual: Size, **sizes: int | None) -> Size:
        """The usual size with the given entries replaced; an entry of None keeps the usual one."""
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
