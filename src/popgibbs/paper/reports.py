"""Tables for the terminal, from results that exist."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from rich.table import Table

from popgibbs.paper.experiment import Experiment
from popgibbs.training import SAMPLER, part_of


def _with_error(entry: Mapping[str, float]) -> str:
    return f"{entry['mean']:.2f} ± {entry['se']:.2f}"


def evaluation_table(experiment: Experiment, results: Mapping[str, Mapping[str, Any]]) -> Table:
    """One column per sampler; K counts the initial proposal, as in the paper."""
    first = next(iter(results.values()))
    budget = first["budget"]
    populations = "1 population" if budget["num_populations"] == 1 else f"{budget['num_populations']} populations"
    size = ", ".join(f"{budget[name]} {name}" for name in experiment.size)
    table = Table(
        title=f"{experiment.name}: {budget['instances']} held-out instances of {size}, {populations}, "
        f"seed {budget['seed']}"
    )
    table.add_column("")
    for label in results:
        table.add_column(label, justify="right")
    budgets = [r["budget"] for r in results.values()]
    table.add_row("budget K × L", *(f"{b['num_sweeps'] + 1} × {b['num_particles']}" for b in budgets))
    last = budget["num_sweeps"] + 1
    for k in [k for k in (1, 5, 10) if k < last]:
        table.add_row(f"log joint, K={k}", *(_at(r["log_joint"]["by_sweep"], k) for r in results.values()))
    table.add_row("log joint at the end", *(_with_error(r["log_joint"]) for r in results.values()))
    if experiment.generating is not None:
        table.add_row("at the generating latents", *(_with_error(r["limit"]) for r in results.values()))
        table.add_row("paired gap", *(_with_error(r["gap"]) for r in results.values()), style="bold")
        table.add_row("truth rank, p-value", *(_number(r["truth_rank"]) for r in results.values()))
    table.add_row("log evidence", *(_with_error(r["log_evidence"]) for r in results.values()))
    for block in first["ess"]:
        table.add_row(f"ESS of {block}", *(f"{r['ess'][block]:.2f}" for r in results.values()))
        table.add_row(f"acceptance of {block}", *(f"{r['acceptance'][block]:.2f}" for r in results.values()))
    for name, measure in experiment.measures.items():
        table.add_row(measure.label, *(measure.show(r[name]) for r in results.values()))
    table.add_row("flagged instances", *(str(r["degenerate"]) for r in results.values()))
    table.add_row("seconds", *(f"{r['seconds']:.1f}" for r in results.values()))
    return table


def _at(by_sweep: Sequence[float], k: int) -> str:
    return f"{by_sweep[k - 1]:.2f}" if k <= len(by_sweep) else "–"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


def run_table(about: Mapping[str, Any]) -> Table:
    """Configuration, step, parameters and versions of a run, all from its description."""
    table = Table(show_header=False, title=f"{about['configuration']['experiment']} at step {about['step']}")
    for name, value in about["configuration"].items():
        table.add_row(name, str(value))
    table.add_row("saved at step", str(about["step"]))
    for part, size in _num_parameters(about["arrays"]).items():
        table.add_row(part, f"{size} parameters")
    table.add_row("versions", ", ".join(f"{package} {number}" for package, number in about["versions"].items()))
    return table


def _num_parameters(arrays: Mapping[str, Any]) -> dict[str, int]:
    """The number of parameters of every block, in the order of the sweep, and of the model, if they have any."""
    found: Counter[str] = Counter()
    for name, (dtype, shape) in arrays.items():
        if part_of(name) == SAMPLER and jnp.issubdtype(dtype, jnp.inexact):
            _, part, *path = name.split("/")
            found[f"block {int(path[0]) + 1}" if part == "blocks" else part] += math.prod(shape)
    return dict(found)
