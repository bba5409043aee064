"""The state that all parts of a reproduction share: the study, its budget, trained samplers, earlier measurements."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from popgibbs._reuse import computed_once
from popgibbs.apg import APG
from popgibbs.paper import runs
from popgibbs.paper.experiment import Experiment, Size, Training
from popgibbs.paper.reproduction.store import Store
from popgibbs.paper.study import Preset, Study, label_of
from popgibbs.training import holds_run


@dataclass(frozen=True)
class Work:
    """One reproduction in a directory."""

    study: Study
    preset: Preset
    store: Store
    seed: int
    console: Console
    _loaded: dict[str, dict[str, APG]] = field(default_factory=dict)  # by size, because building samplers is slow

    @property
    def experiment(self) -> Experiment:
        return self.study.experiment

    @computed_once
    def runs(self) -> dict[str, Path]:
        """The run of every variant, trained now if the package has none."""
        found = {}
        for variant in self.study.variants:
            found[variant] = self.experiment.shipped / variant
            if not found[variant].is_dir():
                self.console.print(f"Training the variant '{variant}', which does not come with the package ...")
                found[variant] = self.store.directory / "runs" / variant
                self.train(found[variant], variant, self.experiment.variants[variant].training)
        return found

    def train(
        self, directory: Path, variant: str, training: Training, note: Callable[[int, APG], None] | None = None
    ) -> None:
        """Train in a directory, or continue the run there; `note` is called at every checkpoint."""
        self.experiment.fit(
            jax.random.key(self.seed),
            variant,
            training,
            checkpoints=directory,
            checkpoint_every=training.checkpoint_every,
            resume=holds_run(directory),
            configuration=runs.configuration(self.experiment, variant, training, self.seed),
            on_checkpoint=note,
        )

    def samplers(self, size: Size) -> dict[str, APG]:
        """Trained samplers by variant, for instances of a size."""
        label = label_of(size)
        if label not in self._loaded:
            self._loaded[label] = {
                variant: runs.load(self.experiment, run, **size)[0] for variant, run in self.runs.items()
            }
        return self._loaded[label]

    def trained_with(self) -> dict[str, Any]:
        """How each sampler was trained."""
        abouts = {variant: runs.describe(run) for variant, run in self.runs.items()}
        return {variant: {"step": about["step"], **about["configuration"]} for variant, about in abouts.items()}
