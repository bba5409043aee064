"""The samplers of a study: those that come with the package, and those that have to be trained."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from popgibbs.api import APG
from popgibbs.checkpoint import holds_run
from popgibbs.experiments import runs
from popgibbs.experiments.experiment import Experiment, Size
from popgibbs.experiments.study import Study


def ready(study: Study, directory: Path, seed: int, console: Console) -> dict[str, Path]:
    """The run of every variant, trained now where none is shipped."""
    found = {}
    for variant in study.variants:
        shipped = study.experiment.shipped / variant
        if not shipped.is_dir():
            console.print(f"Training the variant '{variant}', which does not come with the package ...")
        found[variant] = shipped if shipped.is_dir() else _trained(study.experiment, variant, directory, seed)
    return found


def _trained(experiment: Experiment, variant: str, directory: Path, seed: int) -> Path:
    training = experiment.variants[variant].training
    run = directory / "runs" / variant
    experiment.fit(
        jax.random.key(seed),
        variant,
        training,
        checkpoints=run,
        checkpoint_every=training.checkpoint_every,
        resume=holds_run(run),
        configuration=runs.configuration(experiment, variant, training, seed),
    )
    return run


def loaded(experiment: Experiment, found: Mapping[str, Path], size: Size) -> dict[str, APG]:
    """The samplers for instances of a size."""
    return {variant: runs.load(experiment, run, **size)[0] for variant, run in found.items()}


def described(found: Mapping[str, Path]) -> dict[str, Any]:
    """How each was trained."""
    return {
        variant: {"step": (about := runs.describe(run))["step"], **about["configuration"]}
        for variant, run in found.items()
    }
