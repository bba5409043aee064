"""The paper's tables: methods side by side on held-out instances."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.random import fold_in
from rich.console import Console

from popgibbs.api import APG
from popgibbs.baselines import hmc_after, tuned
from popgibbs.comparison import Method
from popgibbs.diagnostics import mean_and_error
from popgibbs.experiments.experiment import Experiment, Size
from popgibbs.experiments.study import Preset, Samplers, Setting, Study
from popgibbs.experiments.tables import held_out, log_joint_at, run
from popgibbs.reproduction.store import Store
from popgibbs.typing import PRNGKey, Values


def all_methods(
    store: Store, study: Study, preset: Preset, samplers: Samplers, size: Size, seed: int
) -> dict[str, Method]:
    """The study's methods on instances of a size, with HMC's step sizes tuned on training data of that size."""
    label = Setting(size, 0).label
    rws = samplers["rws"]

    def moved(steps: int, step_size: float) -> APG:
        return hmc_after(rws, step_size=step_size, num_steps=steps, summed=study.summed)

    def tune(steps: int) -> float:
        keys = jax.random.split(fold_in(jax.random.key(seed), 0x7C9E), preset.tuning_instances)
        instances = jax.device_get(jax.vmap(lambda key: study.experiment.simulate(key, **size)[0])(keys))
        move: Any = tuned(moved(steps, 1.0), jax.random.key(seed), instances).built.blocks[0].move
        return move.step_size

    by_steps = {
        steps: moved(steps, store.get(f"{label}/step size/{steps}", lambda steps=steps: tune(steps)))
        for steps in study.leapfrog
    }
    return study.methods(samplers, by_steps, num_sweeps=preset.num_sweeps, num_particles=preset.num_particles)


def measure(
    store: Store, study: Study, methods: Mapping[str, Method], setting: Setting, seed: int, console: Console
) -> dict[str, Any]:
    """What all methods reach on the same instances."""
    rows, first = {}, None
    for label, method in methods.items():
        console.print(f"{setting.label}: {label} ...")
        measured = _in_chunks(store, study.experiment, label, method, setting, seed)
        last = measured["log_joint"][:, -1]
        first = last if first is None else first
        rows[label] = {**_spent(method), **_summary(measured), "behind": mean_of(first - last)}
    apg = next(iter(methods.values())).sampler
    return {
        "size": dict(setting.size),
        "instances": setting.num_instances,
        "seed": seed,
        "methods": rows,
        "limit": _limit(store, study.experiment, apg, setting, seed),
    }


def _spent(method: Method) -> dict[str, int]:
    particles = method.num_particles * method.num_populations
    return {
        "K": method.num_sweeps + 1,
        "L": particles,
        "evaluations": (method.num_sweeps + 1) * particles * method.evaluations,
    }


def _parts(setting: Setting) -> list[tuple[int, int]]:
    """The parts of a setting's instances, and how many each has."""
    starts = range(0, setting.num_instances, setting.chunk)
    return [(part, min(setting.chunk, setting.num_instances - start)) for part, start in enumerate(starts)]


def _in_chunks(
    store: Store, experiment: Experiment, label: str, method: Method, setting: Setting, seed: int
) -> dict[str, np.ndarray]:
    chunks = []
    for part, count in _parts(setting):

        def one(part: int = part, count: int = count) -> dict[str, Any]:
            instances, truth = held_out(experiment, seed, count, setting.size, part)
            return run_method(experiment, method, fold_in(jax.random.key(seed), part), instances, truth)

        chunks.append(store.get(f"{setting.label}/{label}/{part}", one))
    return {name: np.concatenate([np.asarray(chunk[name]) for chunk in chunks]) for name in chunks[0]}


def run_method(experiment: Experiment, method: Method, key: PRNGKey, instances: Values, truth: Values) -> dict[str, Any]:
    """Numbers of every instance: after each sweep, or of each block in the last sweep."""
    reached = run(
        experiment,
        method.sampler,
        key,
        instances,
        truth,
        num_sweeps=method.num_sweeps,
        num_particles=method.num_particles,
        num_populations=method.num_populations,
    )
    posterior = reached.posterior
    numbers = {
        "log_joint": posterior.log_joint.mean(axis=1),
        "ess_share": posterior.ess[:, :, -1].mean(axis=1) / method.num_particles,
        "acceptance": posterior.acceptance[:, :, -1].mean(axis=1),
        "seconds": np.full(len(posterior.log_joint), reached.seconds / len(posterior.log_joint)),
        **reached.taken,
    }
    return {name: np.round(values, 4).tolist() for name, values in numbers.items()}


def _summary(measured: Mapping[str, np.ndarray]) -> dict[str, Any]:
    by_sweep = {name: values for name, values in measured.items() if name not in ("ess_share", "acceptance", "seconds")}
    return {
        "ess_share": float(measured["ess_share"].mean()),  # over the blocks of the last sweep
        "acceptance": float(measured["acceptance"][:, 0].mean()),
        "seconds_an_instance": float(measured["seconds"].mean()),
        **{
            name: {**mean_of(values[:, -1]), "by_sweep": [mean_of(column) for column in values.T]}
            for name, values in by_sweep.items()
        },
    }


def mean_of(values: np.ndarray) -> dict[str, float]:
    mean, error = mean_and_error(values)
    return {"mean": mean, "se": error}


def _limit(store: Store, experiment: Experiment, apg: APG, setting: Setting, seed: int) -> dict[str, float] | None:
    """The log joint at the latents that generated the instances, if there are such."""
    if experiment.generating is None:
        return None

    def one(part: int, count: int) -> list[float]:
        return log_joint_at(experiment, apg, *held_out(experiment, seed, count, setting.size, part)).tolist()

    chunks = [
        store.get(f"{setting.label}/limit/{part}", lambda part=part, count=count: one(part, count))
        for part, count in _parts(setting)
    ]
    return mean_of(np.concatenate(chunks))
