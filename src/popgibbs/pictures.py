"""Pictures of an experiment: samples of a few instances over sweeps."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from popgibbs.api import APG
from popgibbs.experiments.experiment import Drawing, Experiment
from popgibbs.figures import mixture_samples
from popgibbs.posterior import Posterior
from popgibbs.typing import PRNGKey, Values

SHOWN = (1, 2, 5, 20)  # the paper's K
NUM_INSTANCES = 2


def samples_figure(
    experiment: Experiment, sampler: APG, key: PRNGKey, instances: Values, one_shot: APG | None = None
) -> Figure:
    """One sample of the first instances after chosen sweeps: the first particle of the resampled population.

    Beside them, one of a sampler without sweeps at the same budget, if there is one, and what the last sample makes of
    the points, if the experiment reconstructs them.
    """
    points = [np.asarray(x) for x in instances["x"][:NUM_INSTANCES]]
    shown: dict[str, tuple[APG, Posterior]] = {}
    if one_shot is not None:
        alone = one_shot.sample(key, points, num_sweeps=0, num_particles=10 * SHOWN[-1])
        shown["RWS"] = one_shot, alone.resampled(key)
    posterior = sampler.sample(key, points, num_sweeps=0)
    for k in SHOWN:
        if more := k - 1 - posterior.num_sweeps:
            posterior = posterior.extend(key, more)
        shown[f"K={k}"] = sampler, posterior.resampled(key)
    drawings: list[dict[str, Drawing]] = []
    for i, x in enumerate(points):
        samples = {title: (apg, _first(drawn[i])) for title, (apg, drawn) in shown.items()}
        drawings.append({title: experiment.draw(apg.built.model, x, one) for title, (apg, one) in samples.items()})
        if experiment.reconstruct is not None:
            last = samples[f"K={SHOWN[-1]}"][1]
            rebuilt = experiment.reconstruct(sampler.built.model, last)
            drawings[-1]["reconstruction"] = experiment.draw(sampler.built.model, rebuilt, last)
    return mixture_samples(points, drawings)


def _first(samples: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {site: values[0, 0] for site, values in samples.items()}
