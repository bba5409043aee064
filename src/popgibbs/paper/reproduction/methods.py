"""The paper's tables: methods side by side on held-out instances."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.random import fold_in

from popgibbs._typing import PRNGKey, Values
from popgibbs.apg import APG
from popgibbs.diagnostics import mean_of
from popgibbs.evaluation import Method, hmc_label, hmc_rws, tune_step_size
from popgibbs.paper.experiment import Experiment
from popgibbs.paper.reproduction.work import Work
from popgibbs.paper.study import Samplers, Setting, label_of
from popgibbs.paper.tables import held_out, log_joint_at, run


def methods_of(work: Work, samplers: Samplers, setting: Setting) -> dict[str, Method]:
    """The study's methods in a setting, with HMC's step sizes tuned on training data of its size."""
    size = setting.size

    def moved(steps: int, step_size: float) -> APG:
        return hmc_rws(samplers["rws"], step_size=step_size, num_steps=steps, sum_out_finite=work.study.sum_out_finite)

    def tune(steps: int) -> float:
        work.console.print(f"{label_of(size)}: tuning the step size of {hmc_label(steps)} ...")
        keys = jax.random.split(fold_in(jax.random.key(work.seed), 0x7C9E), work.preset.tuning_instances)
        instances = jax.device_get(jax.vmap(lambda key: work.experiment.simulate(key, **size)[0])(keys))
        fresh = moved(steps, 1.0)
        found = tune_step_size(fresh, jax.random.key(work.seed), instances, num_sweeps=work.preset.num_sweeps)
        move: Any = found.built.blocks[0].move
        return move.step_size

    by_steps = {
        steps: moved(steps, work.store.get(f"{label_of(size)}/step size/{steps}", lambda steps=steps: tune(steps)))
        for steps in work.study.leapfrog
        if setting.measures(hmc_label(steps))
    }
    budget: Any = {"num_sweeps": work.preset.num_sweeps, "num_particles": work.preset.num_particles}
    found = work.study.methods(samplers, by_steps, **budget)
    return {label: method for label, method in found.items() if setting.measures(label)}


def measure(work: Work, methods: Mapping[str, Method], setting: Setting) -> dict[str, Any]:
    """The results of all methods on the same instances."""
    rows, first = {}, None
    for label, method in methods.items():
        work.console.print(f"{setting.label}: {label} ...")
        measured = _in_chunks(work, label, method, setting)
        last = measured["log_joint"][:, -1]
        first = last if first is None else first
        with np.errstate(invalid="ignore"):  # failed weights may give a log joint of −inf
            rows[label] = {**method.spent, **_summary(measured), "behind": mean_of(first - last)}
    return {
        "label": setting.label,
        "size": dict(setting.size),
        "instances": setting.num_instances,
        "seed": work.seed,
        "methods": rows,
        "limit": _limit(work, next(iter(methods.values())).sampler, setting),
    }


def _parts(setting: Setting) -> list[tuple[int, int]]:
    """The parts of a setting's instances, each with its number of instances."""
    starts = range(0, setting.num_instances, setting.chunk)
    return [(part, min(setting.chunk, setting.num_instances - start)) for part, start in enumerate(starts)]


def _in_chunks(work: Work, label: str, method: Method, setting: Setting) -> dict[str, np.ndarray]:
    chunks = []
    for part, count in _parts(setting):

        def one(part: int = part, count: int = count) -> dict[str, Any]:
            instances, truth = held_out(work.experiment, work.seed, count, setting.size, part)
            return run_method(work.experiment, method, fold_in(jax.random.key(work.seed), part), instances, truth)

        chunks.append(work.store.get(f"{setting.label}/{label}/{part}", one))
    return {name: np.concatenate([np.asarray(chunk[name]) for chunk in chunks]) for name in chunks[0]}


def run_method(experiment: Experiment, method: Method, key: PRNGKey, instances: Values, truth: Values) -> dict[str, Any]:
    """The numbers of every instance, by sweep or, for ESS and acceptance, by block in the last sweep."""
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
        "log_joint": posterior.mean_log_joint.mean(axis=1),
        "ess_share": posterior.ess[:, :, -1].mean(axis=1) / method.num_particles,
        "acceptance": posterior.acceptance[:, :, -1].mean(axis=1),
        "seconds": np.full(len(posterior), reached.seconds / len(posterior)),
        "failed": posterior.degenerate,
        **reached.taken,
    }
    return {name: np.round(np.asarray(values, float), 4).tolist() for name, values in numbers.items()}


def _summary(measured: Mapping[str, np.ndarray]) -> dict[str, Any]:
    once = ("ess_share", "acceptance", "seconds", "failed")
    by_sweep = {name: values for name, values in measured.items() if name not in once}
    return {
        "ess_share": float(measured["ess_share"].mean()),  # over the blocks of the last sweep
        "acceptance": float(measured["acceptance"][:, 0].mean()),
        "failed": int(measured["failed"].sum()),  # instances in which every particle lost its weight
        "seconds_an_instance": float(measured["seconds"].mean()),
        **{
            name: {**mean_of(values[:, -1]), "by_sweep": [mean_of(column) for column in values.T]}
            for name, values in by_sweep.items()
        },
    }


def _limit(work: Work, apg: APG, setting: Setting) -> dict[str, float] | None:
    """The log joint at the latents that generated the instances, if a model's latents did."""
    if work.experiment.generating is None:
        return None

    def one(part: int, count: int) -> list[float]:
        instances, truth = held_out(work.experiment, work.seed, count, setting.size, part)
        return log_joint_at(work.experiment, apg, instances, truth).tolist()

    chunks = [
        work.store.get(f"{setting.label}/limit/{part}", lambda part=part, count=count: one(part, count))
        for part, count in _parts(setting)
    ]
    return mean_of(np.concatenate(chunks))
