"""The protocols of evaluation: held-out simulated instances, the paired gap to the truth, calibration."""

import time
from typing import Any

import jax
import numpy as np
from jax.random import fold_in

from popgibbs.api import APG
from popgibbs.diagnostics import mean_and_error, truth_rank_p_value
from popgibbs.experiments.experiment import Evaluated, Experiment
from popgibbs.instances import complete
from popgibbs.posterior import Posterior
from popgibbs.target import Target
from popgibbs.typing import Values


def held_out(experiment: Experiment, seed: int, num_instances: int, num_points: int) -> tuple[Values, Values]:
    """Simulated instances, stacked, and the latents that generated them. Training keys never coincide with these."""
    keys = jax.random.split(fold_in(jax.random.key(seed), 0x7E57), num_instances)
    return jax.device_get(jax.jit(jax.vmap(lambda key: experiment.simulate(key, num_points)))(keys))


def log_joint_at(experiment: Experiment, apg: APG, instances: Values, latents: Values) -> np.ndarray:
    """log p(x, z) of each instance at the latents that generated it."""
    model = apg.built.model
    if experiment.generating is not None:
        model = experiment.generating(model)

    def one(instance: Values, latents: Values) -> jax.Array:
        return Target(model, complete(instance, apg.axes), apg.built.sites).log_joint(latents)

    return np.asarray(jax.jit(jax.vmap(one))(instances, latents))


def evaluate(
    experiment: Experiment,
    apg: APG,
    *,
    num_instances: int,
    num_points: int,
    num_sweeps: int,
    num_particles: int,
    num_populations: int,
    seed: int,
) -> tuple[dict[str, Any], Posterior]:
    """Sample held-out instances and compare with the latents that generated them.

    Every population is a run of its own with the given particles; they are averaged, which only makes the numbers less
    noisy, and give the independent draws that the truth is ranked among.
    """
    instances, truth = held_out(experiment, seed, num_instances, num_points)
    key_sample, key_draw, key_measure = jax.random.split(jax.random.key(seed), 3)
    started = time.perf_counter()
    posterior = apg.sample(
        key_sample,
        instances,
        num_sweeps=num_sweeps,
        num_particles=num_particles,
        num_populations=num_populations,
        progress=True,
    )
    seconds = time.perf_counter() - started
    at_truth = log_joint_at(experiment, apg, instances, truth)
    log_joint = posterior.log_joint.mean(axis=1)
    gap = log_joint - at_truth[:, None]
    resampled = posterior.resampled(key_draw)
    draws, exact = resampled.log_joints[:, :, 0], experiment.generating is None
    limit, limit_error = mean_and_error(at_truth)
    evidence, evidence_error = mean_and_error(posterior.log_evidence)
    result = {
        "experiment": experiment.name,
        "budget": {
            "instances": num_instances,
            "points": num_points,
            "num_sweeps": num_sweeps,
            "num_particles": num_particles,
            "num_populations": num_populations,
            "seed": seed,
        },
        "log_joint": _by_sweep(log_joint),
        "gap": _by_sweep(gap),
        # Ranks are uniform only where the model is the one that generated the instances.
        "truth_rank": truth_rank_p_value(draws, at_truth) if num_populations > 1 and exact else None,
        "limit": {"mean": limit, "se": limit_error},
        "log_evidence": {"mean": evidence, "se": evidence_error},
        "ess": _by_block(posterior, posterior.ess),
        "acceptance": _by_block(posterior, posterior.acceptance),
        "degenerate": int(posterior.degenerate.sum()),
        "seconds": seconds,
    }
    evaluated = Evaluated(apg, key_measure, instances, truth, resampled)
    for name, measure in experiment.measures.items():
        result[name] = measure.of(evaluated)
    return result, posterior


def _by_sweep(values: np.ndarray) -> dict[str, Any]:
    mean, error = mean_and_error(values[:, -1])
    return {"mean": mean, "se": error, "by_sweep": [float(value) for value in values.mean(axis=0)]}


def _by_block(posterior: Posterior, values: np.ndarray) -> dict[str, float]:
    last = values[:, :, -1].mean(axis=(0, 1))
    return {label: float(value) for label, value in zip(posterior.blocks, last, strict=True)}
