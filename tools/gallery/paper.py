"""Two of the paper's models with the samplers that the library builds, beside the hand-written ones of the package."""

import time
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np

import popgibbs as pg
from popgibbs.diagnostics import mean_and_error
from popgibbs.paper.dmm import DMM
from popgibbs.paper.experiment import Experiment
from popgibbs.paper.gmm import GMM

_TIMED_SWEEPS = 20
_REPEATED = 3


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The instances of one experiment, and the budget of both samplers."""

    experiment: Experiment
    num_instances: int
    num_points: int
    num_timed: int  # instances on which sweeps are timed; none if it would take too long
    num_sweeps: int = 19
    num_particles: int = 10

    @property
    def size(self) -> dict[str, int]:
        return {"points": self.num_points}

    @property
    def budget(self) -> dict[str, int]:
        return {"num_sweeps": self.num_sweeps, "num_particles": self.num_particles}


SETTINGS = {
    "mixture": Setting(experiment=GMM, num_instances=500, num_points=100, num_timed=10),
    "deep_mixture": Setting(experiment=DMM, num_instances=5, num_points=600, num_timed=0),
}


def compare(name: str, setting: Setting) -> dict[str, Any]:
    """Log joints of both samplers on the same instances, their paired difference, and how long their sweeps take."""
    experiment = setting.experiment
    by_hand = experiment.build(experiment.default, jax.random.key(0), setting.size).load(
        experiment.shipped / experiment.default
    )
    instances = _instances(setting)
    built = pg.APG(by_hand.model, data=experiment.data, example=instances[0])
    log_joint, seconds = {}, {}
    for label, sampler in {"built": built, "by hand": by_hand}.items():
        posterior = sampler.sample(jax.random.key(2), instances, **setting.budget)
        log_joint[label] = posterior.mean_log_joint[:, 0]
        if setting.num_timed:
            seconds[label] = _seconds_of_sweep(sampler, instances[: setting.num_timed], setting)
    last = {label: values[:, -1] for label, values in log_joint.items()}
    ahead, error = mean_and_error(last["built"] - last["by hand"])
    return {
        "name": name,
        "settings": {key: value for key, value in asdict(setting).items() if key != "experiment"},
        "log_joint": {label: float(values.mean()) for label, values in last.items()},
        "log_joint_by_sweep": {label: values.mean(axis=0).tolist() for label, values in log_joint.items()},
        "worst": {label: float(values.min()) for label, values in last.items()},
        "ahead": float(ahead),
        "ahead_se": float(error),
        "sweep_ratio": seconds["built"] / seconds["by hand"] if seconds else None,
        "seconds_of_sweep": seconds,
    }


def _instances(setting: Setting) -> list[Any]:
    keys = jax.random.split(jax.random.key(1), setting.num_instances)
    simulate = jax.jit(jax.vmap(lambda key: setting.experiment.simulate(key, **setting.size)[0]))
    arrays = jax.device_get(simulate(keys))
    return [{name: np.asarray(array[i]) for name, array in arrays.items()} for i in range(setting.num_instances)]


def _seconds_of_sweep(sampler: pg.APG, instances: list[Any], setting: Setting) -> float:
    """Seconds of one sweep over all instances, without the first draw; the fastest of several runs."""

    def seconds(num_sweeps: int) -> float:
        times = []
        for _ in range(_REPEATED):
            begun = time.perf_counter()
            sampler.sample(jax.random.key(0), instances, num_sweeps=num_sweeps, num_particles=setting.num_particles)
            times.append(time.perf_counter() - begun)
        return min(times[1:])  # the first one compiles

    return (seconds(1 + _TIMED_SWEEPS) - seconds(1)) / _TIMED_SWEEPS
