"""The paper's curves: convergence on one instance, block strategies at a fixed budget, a measure during training."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from popgibbs.apg import APG
from popgibbs.diagnostics import mean_of
from popgibbs.evaluation import Method
from popgibbs.paper.reproduction.methods import run_method
from popgibbs.paper.reproduction.work import Work
from popgibbs.paper.study import Learning
from popgibbs.paper.tables import held_out

POINTS = 20  # on a curve over training


def convergence(work: Work, methods: Mapping[str, Method]) -> dict[str, Any]:
    """The log joint over sweeps of many runs on one instance: the mean and the 10% and 90% quantiles."""
    size, num_runs = work.preset.settings[0].size, work.preset.num_runs
    one = held_out(work.experiment, work.seed, 1, size)
    instances, truth = jax.tree.map(lambda leaf: np.repeat(leaf, num_runs, axis=0), one)
    curves = {}
    for label, method in work.study.one_instance(methods).items():
        work.console.print(f"One instance, {num_runs} runs: {label} ...")

        def all_runs(method: Method = method) -> Any:
            return run_method(work.experiment, method, jax.random.key(work.seed), instances, truth)["log_joint"]

        log_joint = np.asarray(work.store.get(f"one instance/{label}", all_runs))
        low, high = np.quantile(log_joint, [0.1, 0.9], axis=0)
        curves[label] = {"mean": log_joint.mean(axis=0).tolist(), "low": low.tolist(), "high": high.tolist()}
    return {"runs": num_runs, "size": dict(size), "methods": curves}


def fixed_budget(work: Work, strategies: Mapping[str, APG]) -> dict[str, Any]:
    """The log joint and ESS/L of block strategies at constant K·L, ESS/L averaged over the blocks of the last sweep."""
    preset, size = work.preset, work.preset.settings[0].size
    instances, truth = held_out(work.experiment, work.seed, preset.budget_instances, size)
    curves: dict[str, Any] = {}
    for strategy, apg in strategies.items():
        for k in preset.budget_ks:
            work.console.print(f"K·L={preset.budget}, {strategy} blocks: K={k} ...")
            method = Method(sampler=apg, num_sweeps=k - 1, num_particles=preset.budget // k)

            def numbers(method: Method = method) -> Any:
                measured = run_method(work.experiment, method, jax.random.key(work.seed), instances, truth)
                return {
                    "log_joint": mean_of(np.asarray(measured["log_joint"])[:, -1]),
                    "ess_share": mean_of(np.mean(measured["ess_share"], axis=1)),
                }

            curves.setdefault(strategy, {})[str(k)] = work.store.get(f"budget/{strategy}/{k}", numbers)
    return {"budget": preset.budget, "instances": preset.budget_instances, "size": dict(size), "strategies": curves}


def learning(work: Work, learning: Learning) -> dict[str, Any]:
    """A measure during the training of a variant, for several splits of the budget into sweeps and particles."""
    usual = work.experiment.variants[learning.variant].training
    every = max(work.preset.learning_steps // POINTS, 1)
    curves = {}
    for k in work.preset.learning_ks:
        particles = learning.budget // k
        work.console.print(f"Training with K={k}, L={particles} ...")
        spent: Any = {
            "num_sweeps": k - 1,
            "num_particles": particles,
            "num_steps": work.preset.learning_steps,
            "batch_size": work.preset.learning_batch,
        }

        def note(step: int, apg: APG, k: int = k) -> None:
            work.store.get(f"learning/{k}/{step:07}", lambda: learning.measure(apg, jax.random.key(work.seed)))

        directory = work.store.directory / "runs" / f"learning-{k}"
        work.train(directory, learning.variant, replace(usual, checkpoint_every=every, **spent), note)
        curves[str(k)] = {step.lstrip("0"): at for step, at in work.store.all(f"learning/{k}").items()}
    return {"measure": learning.label, "budget": learning.budget, "by_k": curves}
