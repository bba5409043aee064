"""Bouncing digits (the paper, section 6.4 and appendix F.3)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from popgibbs._compiling import initialised
from popgibbs._typing import PRNGKey, Values
from popgibbs.apg import APG
from popgibbs.paper.bmnist.data import digits, simulate
from popgibbs.paper.bmnist.images import CANVAS, DIGIT, to_pixels
from popgibbs.paper.bmnist.measures import rebuild, squared_error
from popgibbs.paper.bmnist.model import BouncingDigits
from popgibbs.paper.bmnist.proposals import PaperHead, PaperWhat, SoftArgmax, What, Where
from popgibbs.paper.experiment import TRAINED, Experiment, Film, Measure, Size, Training, Variant
from popgibbs.smc import Block, SequenceBlock

DATA = {"frames": "time"}
MOST_DIGITS = (CANVAS // DIGIT) ** 2


def build(variant: str, key: PRNGKey, size: Size) -> APG:
    """A fresh sampler.

    `default` finds digits by the mean and spread of their correlation maps, and codes by optimisation through the
    decoder; `paper` has the paper's networks for both, `paper-where` for places only; `rws` is `default` without sweeps.
    """
    mean = jnp.asarray(mean_digit())

    def networks(key: PRNGKey) -> tuple[Any, Any, Any]:
        key_model, key_where, key_what = jax.random.split(key, 3)
        head = (PaperHead if variant in ("paper", "paper-where") else SoftArgmax)(key=key_where)
        what = (PaperWhat if variant == "paper" else What)(key=key_what)
        return BouncingDigits(size["digits"], mean, key=key_model), head, what

    model, head, what = initialised(networks, key)
    return APG(
        model,
        data=DATA,
        blocks=[SequenceBlock("where", proposal=Where(head, mean)), Block("what", proposal=what)],
        example={"frames": np.random.default_rng(0).uniform(size=(3, CANVAS, CANVAS)).astype(np.float32)},
    )


def mean_digit() -> np.ndarray:
    """The mean of MNIST's training images, between 0 and 1."""
    return np.load(Path(__file__).parent / "mean.npy").astype(np.float32) / 255


def training_video(key: PRNGKey, digits: int, frames: int) -> tuple[Values, Values]:
    return simulate(key, _images("train"), digits, frames)


def held_out_video(key: PRNGKey, digits: int, frames: int) -> tuple[Values, Values]:
    return simulate(key, _images("test"), digits, frames)


def _images(part: str) -> Any:
    return jnp.asarray(getattr(digits(), part))


def check(instance: Values, where: str) -> None:
    frames = np.asarray(instance["frames"])
    if frames.ndim != 3 or frames.shape[1:] != (CANVAS, CANVAS):
        raise ValueError(f"{where}: 'frames' has shape {frames.shape}; a video has shape (frames, {CANVAS}, {CANVAS})")
    if not ((frames >= 0) & (frames <= 1)).all():
        raise ValueError(
            f"{where}: 'frames' has values from {frames.min():g} to {frames.max():g}; pixels must be between 0 and 1"
        )


def check_size(size: Size) -> None:
    if size["digits"] > MOST_DIGITS:
        raise ValueError(
            f"{size['digits']} digits of {DIGIT}×{DIGIT} pixels do not fit side by side into {CANVAS}×{CANVAS}: "
            f"there can be at most {MOST_DIGITS}"
        )


def draw(model: Any, instance: Values, sample: Mapping[str, np.ndarray]) -> Film:
    """The video, its reconstruction from the sample, and the box of every digit."""
    corners = np.asarray(to_pixels(jnp.asarray(sample["where"])))
    boxes = np.concatenate([corners, np.full_like(corners, DIGIT)], axis=-1)
    rebuilt = np.asarray(rebuild(model, jnp.asarray(sample["what"]), jnp.asarray(sample["where"])))
    return Film(np.asarray(instance["frames"]), rebuilt, boxes)


TRAINING = Training(
    num_steps=2000,
    learning_rate=1.5e-3,
    num_sweeps=2,
    num_particles=6,
    batch_size=10,
    size={"digits": 3, "frames": 10},
    update_model="every_sweep",
    checkpoint_every=250,
    snapshots=True,
)
# As many particles per step as three times six. A step takes equally long; fewer of them save time.
ONE_SHOT = replace(TRAINING, num_steps=800, num_sweeps=0, num_particles=18)

EXPERIMENT = Experiment(
    name="bmnist",
    about="bouncing digits: any number of handwritten digits that move over a canvas, any number of frames",
    data=DATA,
    build=build,
    variants={
        "default": Variant(training=TRAINING),
        "rws": Variant(training=ONE_SHOT, one_shot=True),
        "paper": Variant(training=replace(TRAINING, update_model="every_block")),
        "paper-where": Variant(training=TRAINING),
    },
    simulate=training_video,
    simulate_held_out=held_out_video,
    check=check,
    check_size=check_size,
    measures={
        "squared_error": Measure(
            "squared error a frame", squared_error, lambda e: f"{e['mean']:.1f} ± {e['se']:.1f}", by_sweep=True
        )
    },
    draw=draw,
    size={"digits": 5, "frames": 100},
    instances_are="videos",
    num_instances=40,
    num_populations=1,
    batch_size=10,
    most_particles=200,
    shipped=TRAINED / "bmnist",
)
