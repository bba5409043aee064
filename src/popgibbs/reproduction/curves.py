"""The paper's curves: convergence on one instance, block strategies at a fixed budget, a measure during training."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from rich.console import Console

from popgibbs.api import APG
from popgibbs.checkpoint import holds_run
from popgibbs.comparison import Method
from popgibbs.experiments import runs
from popgibbs.experiments.study import Learning, Preset, Samplers, Study
from popgibbs.experiments.tables import held_out
from popgibbs.reproduction.methods import mean_of, run_method
from popgibbs.reproduction.store import Store

POINTS = 20  # of a curve over training


def convergence(
    store: Store, study: Study, preset: Preset, methods: Mapping[str, Method], seed: int, console: Console
) -> dict[str, Any]:
    """The log joint over sweeps of many runs on one instance: the mean, and between which values eight in ten lie."""
    one = held_out(study.experiment, seed, 1, preset.settings[0].size)
    instances, truth = jax.tree.map(lambda leaf: np.repeat(leaf, preset.num_runs, axis=0), one)
    curves = {}
    for label, method in study.one_instance(methods).items():
        console.print(f"One instance, {preset.num_runs} runs: {label} ...")

        def runs_of(method: Method = method) -> Any:
            return run_method(study.experiment, method, jax.random.key(seed), instances, truth)["log_joint"]

        log_joint = np.asarray(store.get(f"one instance/{label}", runs_of))
        low, high = np.quantile(log_joint, [0.1, 0.9], axis=0)
        curves[label] = {"mean": log_joint.mean(axis=0).tolist(), "low": low.tolist(), "high": high.tolist()}
    return {"runs": preset.num_runs, "size": dict(preset.settings[0].size), "methods": curves}


def fixed_budget(
    store: Store, study: Study, preset: Preset, samplers: Samplers, seed: int, console: Console
) -> dict[str, Any]:
    """The log joint and ESS/L, averaged over the blocks of the last sweep, of block strategies as K·L is held."""
    assert study.strategies is not None
    size = preset.settings[0].size
    instances, truth = held_out(study.experiment, seed, preset.budget_instances, size)
    curves: dict[str, Any] = {}
    for strategy, apg in study.strategies(samplers).items():
        for k in preset.budget_ks:
            console.print(f"K·L={preset.budget}, {strategy} blocks: K={k} ...")
            method = Method(sampler=apg, num_sweeps=k - 1, num_particles=preset.budget // k)

            def numbers(method: Method = method) -> Any:
                measured = run_method(study.experiment, method, jax.random.key(seed), instances, truth)
                return {
                    "log_joint": mean_of(np.asarray(measured["log_joint"])[:, -1]),
                    "ess_share": mean_of(np.mean(measured["ess_share"], axis=1)),
                }

            curves.setdefault(strategy, {})[str(k)] = store.get(f"budget/{strategy}/{k}", numbers)
    return {"budget": preset.budget, "instances": preset.budget_instances, "size": dict(size), "strategies": curves}


def learning(
    store: Store, study: Study, learning: Learning, preset: Preset, seed: int, console: Console
) -> dict[str, Any]:
    """A measure while a variant trains, with more sweeps or with more particles."""
    experiment = study.experiment
    every = max(preset.learning_steps // POINTS, 1)
    curves = {}
    for k in learning.ks:
        console.print(f"Training with K={k}, L={learning.budget // k} ...")
        training = replace(
            experiment.variants[learning.variant].training,
            num_steps=preset.learning_steps,
            num_sweeps=k - 1,
            num_particles=learning.budget // k,
        )

        def note(step: int, apg: APG, k: int = k) -> None:
            store.get(f"learning/{k}/{step:07}", lambda: learning.measure(apg, jax.random.key(seed)))

        run = store.directory / "runs" / f"learning-{k}"
        experiment.fit(
            jax.random.key(seed),
            learning.variant,
            training,
            checkpoints=run,
            checkpoint_every=every,
            resume=holds_run(run),
            configuration=runs.configuration(experiment, learning.variant, training, seed),
            at_checkpoints=note,
        )
        curves[str(k)] = {int(step): value["mean"] for step, value in store.all(f"learning/{k}").items()}
    return {"measure": learning.label, "budget": learning.budget, "by_k": curves}
