"""Runs of an experiment in directories: their descriptions, and how to read them."""

from pathlib import Path
from typing import Any

import jax

from popgibbs.apg import APG
from popgibbs.paper.experiment import Experiment, Training
from popgibbs.training import CheckpointError, read_about, waiting


def configuration(experiment: Experiment, variant: str, training: Training, seed: int) -> dict[str, Any]:
    """The description of a run: the settings that it was trained with."""
    return {
        "experiment": experiment.name,
        "variant": variant,
        "seed": seed,
        "num_steps": training.num_steps,
        "size": dict(training.size),
        **training.spends,
    }


def describe(directory: Path, step: int | None = None) -> dict[str, Any]:
    """The step, the versions and the configuration of a run's checkpoint, by default the newest that can be read."""
    about = read_about(directory, step)
    if missing := [name for name in ("experiment", "variant", "size") if name not in about["configuration"]]:
        raise CheckpointError(f"{directory} is not a run of this version's `popgibbs train`: it names no {missing[0]}")
    return about


def describe_of(experiment: Experiment, directory: Path, step: int | None = None) -> dict[str, Any]:
    """The description of a run that must be one of the experiment, of a variant that it has."""
    about = describe(directory, step)
    made_with = about["configuration"]
    if made_with["experiment"] != experiment.name:
        raise ValueError(f"{directory} is a run of '{made_with['experiment']}', not of '{experiment.name}'")
    experiment.check_variant(made_with["variant"])
    return about


def load(
    experiment: Experiment, directory: Path, step: int | None = None, **size: int | None
) -> tuple[APG, dict[str, Any]]:
    """The sampler of a run and the run's description.

    The sampler is built for instances of the size that it was trained on, unless `size` gives others.
    """
    about = describe_of(experiment, directory, step)
    made_with = about["configuration"]
    with waiting("checking the sampler"):
        fresh = experiment.build(made_with["variant"], jax.random.key(0), experiment.sized(made_with["size"], **size))
    return fresh.load(directory, about["step"]), about
