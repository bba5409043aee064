"""Pictures of an experiment: samples of a few instances over sweeps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from popgibbs._typing import PRNGKey, Values
from popgibbs.apg import APG
from popgibbs.paper.experiment import Drawing, Experiment
from popgibbs.posterior import Posterior

SHOWN = (1, 2, 5, 20)  # the paper's K
NUM_INSTANCES = 2
NUM_PARTICLES = 10

Drawings: TypeAlias = Sequence[Mapping[str, Drawing]]
"""For every instance, its samples by title."""


def draw_samples(
    experiment: Experiment, sampler: APG | None, key: PRNGKey, instances: Values, one_shot: APG | None = None
) -> Drawings:
    """One sample of the first instances after chosen sweeps: the first particle of the resampled population.

    Next to them, one sample of a sampler without sweeps at the same budget, if there is one, and the reconstruction of
    the instance from the last sample, if the experiment defines it.
    """
    chosen = [{name: values[i] for name, values in instances.items()} for i in range(NUM_INSTANCES)]
    shown: dict[str, tuple[APG, Posterior]] = {}
    if one_shot is not None:
        many = NUM_PARTICLES * SHOWN[-1]
        alone = one_shot.sample(
            key, chosen, num_sweeps=0, num_particles=many, batch_size=experiment.instances_at_once(many)
        )
        shown["RWS"] = one_shot, alone.resampled(key)
    if sampler is not None:
        posterior = sampler.sample(key, chosen, num_sweeps=0, num_particles=NUM_PARTICLES)
        for k in SHOWN:
            # One sweep at a time, so that all K share one compiled function.
            while posterior.num_sweeps < k - 1:
                posterior = posterior.extend(key, 1)
            shown[f"K={k}"] = sampler, posterior.resampled(key)
    drawings: list[dict[str, Any]] = []
    for i, instance in enumerate(chosen):
        samples = {title: (apg, _first(drawn[i])) for title, (apg, drawn) in shown.items()}
        drawings.append({title: experiment.draw(apg.built.model, instance, one) for title, (apg, one) in samples.items()})
        if experiment.reconstruct is not None:
            apg, last = samples[list(samples)[-1]]
            rebuilt = experiment.reconstruct(apg.built.model, last)
            drawings[-1]["reconstruction"] = experiment.draw(apg.built.model, rebuilt, last)
    return drawings


def _first(samples: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {site: np.asarray(values[0, 0]) for site, values in samples.items()}


def save_samples(drawings: Drawings, path: Path) -> None:
    """Save a picture of the samples in the way that their kind of drawing defines."""
    type(next(iter(drawings[0].values()))).save(drawings, path)
