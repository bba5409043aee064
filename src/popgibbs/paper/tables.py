"""Evaluation protocols: held-out simulated instances, the paired gap to the truth, calibration."""

import time
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.random import fold_in

from popgibbs._typing import PRNGKey, Values
from popgibbs.apg import APG
from popgibbs.data import complete
from popgibbs.diagnostics import mean_of, truth_rank_p_value
from popgibbs.model import Target
from popgibbs.paper.experiment import Evaluated, Experiment, Size
from popgibbs.posterior import Posterior
from popgibbs.training import progress_of


def held_out(experiment: Experiment, seed: int, num_instances: int, size: Size, part: int = 0) -> tuple[Values, Values]:
    """Simulated instances, stacked, and the latents that generated them.

    Their keys never coincide with training keys. Large sets are simulated in parts, each with its own keys.
    """
    keys = jax.random.split(fold_in(jax.random.key(seed), 0x7E57 + part), num_instances)
    simulate = experiment.simulate_held_out or experiment.simulate
    return jax.device_get(jax.jit(jax.vmap(lambda key: simulate(key, **size)))(keys))


def log_joint_at(experiment: Experiment, apg: APG, instances: Values, latents: Values) -> np.ndarray:
    """log p(x, z) of each instance at the latents that generated it."""
    assert experiment.generating is not None
    model = experiment.generating(apg.built.model)

    def one(instance: Values, latents: Values) -> jax.Array:
        return Target(model, complete(instance, apg.axes), apg.built.sites).log_joint(latents)

    return np.asarray(jax.jit(jax.vmap(one))(instances, latents))


class Reached(NamedTuple):
    """The result of a run on held-out instances."""

    posterior: Posterior
    taken: dict[str, np.ndarray]  # (instance, sweep), for every measure that is taken after every sweep
    seconds: float  # spent sampling


def run(
    experiment: Experiment,
    apg: APG,
    key: PRNGKey,
    instances: Values,
    truth: Values,
    *,
    num_sweeps: int,
    num_particles: int,
    num_populations: int,
) -> Reached:
    """Sample instances, one sweep at a time if something is measured after every sweep; the samples are the same."""
    by_sweep = {name: measure for name, measure in experiment.measures.items() if measure.by_sweep}
    started, measuring = time.perf_counter(), 0.0
    posterior = apg.sample(
        key,
        instances,
        num_sweeps=0 if by_sweep else num_sweeps,
        num_particles=num_particles,
        num_populations=num_populations,
        batch_size=experiment.instances_at_once(num_particles * num_populations),
        progress=True,
    )
    taken: dict[str, list[np.ndarray]] = {name: [] for name in by_sweep}
    for sweep in progress_of("sweeps", range(num_sweeps + 1)) if by_sweep else ():
        if sweep:
            posterior = posterior.extend(key, 1)
        paused = time.perf_counter()
        for name, measure in by_sweep.items():
            taken[name].append(measure.of(Evaluated(apg, fold_in(key, sweep), instances, truth, posterior)))
        measuring += time.perf_counter() - paused
    seconds = time.perf_counter() - started - measuring
    return Reached(posterior, {name: np.stack(values, axis=1) for name, values in taken.items()}, seconds)


def evaluate(
    experiment: Experiment,
    apg: APG,
    *,
    num_instances: int,
    size: Size,
    num_sweeps: int,
    num_particles: int,
    num_populations: int,
    seed: int,
) -> tuple[dict[str, Any], Posterior]:
    """Sample held-out instances and compare with the latents that generated them.

    Every population is an independent run with the given particles. Averaging over them only reduces noise; they also
    supply the independent draws among which the truth is ranked.
    """
    instances, truth = held_out(experiment, seed, num_instances, size)
    key_sample, key_draw, key_measure = jax.random.split(jax.random.key(seed), 3)
    posterior, taken, seconds = run(
        experiment,
        apg,
        key_sample,
        instances,
        truth,
        num_sweeps=num_sweeps,
        num_particles=num_particles,
        num_populations=num_populations,
    )
    log_joint = posterior.mean_log_joint.mean(axis=1)
    resampled = posterior.resampled(key_draw)
    result = {
        "experiment": experiment.name,
        "budget": {
            "instances": num_instances,
            **size,
            "num_sweeps": num_sweeps,
            "num_particles": num_particles,
            "num_populations": num_populations,
            "seed": seed,
        },
        "log_joint": _by_sweep(log_joint),
        **_against_truth(experiment, apg, instances, truth, log_joint, resampled, seed),
        "log_evidence": mean_of(posterior.log_evidence),
        "ess": _by_block(posterior, posterior.ess),
        "acceptance": _by_block(posterior, posterior.acceptance),
        "degenerate": int(posterior.degenerate.sum()),
        "seconds": seconds,
    }
    evaluated = Evaluated(apg, key_measure, instances, truth, resampled)
    for name, measure in experiment.measures.items():
        result[name] = _by_sweep(taken[name]) if measure.by_sweep else measure.of(evaluated)
    return result, posterior


def _against_truth(
    experiment: Experiment,
    apg: APG,
    instances: Values,
    truth: Values,
    log_joint: np.ndarray,
    resampled: Posterior,
    seed: int,
) -> dict[str, Any]:
    """The log joint at the generating latents, the paired gap to it and the rank of the truth among the draws."""
    if experiment.generating is None:
        return {"gap": None, "truth_rank": None, "limit": None}
    at_truth = log_joint_at(experiment, apg, instances, truth)
    # Ranks are uniform only if the sampled model generated the instances.
    ranked = resampled.num_populations > 1 and experiment.is_generated
    draws = resampled.log_joint[:, :, 0]  # one per population: particles of the same population share ancestors
    return {
        "gap": _by_sweep(log_joint - at_truth[:, None]),
        "truth_rank": truth_rank_p_value(draws, at_truth, np.random.default_rng(seed)) if ranked else None,
        "limit": mean_of(at_truth),
    }


def _by_sweep(values: np.ndarray) -> dict[str, Any]:
    return {**mean_of(values[:, -1]), "by_sweep": [float(value) for value in values.mean(axis=0)]}


def _by_block(posterior: Posterior, values: np.ndarray) -> dict[str, float]:
    last = values[:, :, -1].mean(axis=(0, 1))
    return {label: float(value) for label, value in zip(posterior.blocks, last, strict=True)}
