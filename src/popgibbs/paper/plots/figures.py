"""Figures from existing results; nothing here samples."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from popgibbs.paper.experiment import MixtureDrawing

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, bbox_inches="tight")


def bare(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("0.8")


def mixture_samples(drawings: Sequence[Mapping[str, MixtureDrawing]]) -> Figure:
    """One row per instance: the data, then one drawing per title."""
    titles = list(drawings[0])
    points = [by_title[titles[0]].points for by_title in drawings]
    columns = 1 + len(titles)
    figure = Figure(figsize=(2.1 * columns, 2.1 * len(points)), layout="constrained")
    grid = figure.subplots(len(points), columns, squeeze=False)
    size = 6.0 if len(points[0]) < 200 else 2.0
    for row, (x, by_title) in enumerate(zip(points, drawings, strict=True)):
        grid[row][0].scatter(*x.T, s=size, color="0.35", linewidths=0)
        for column, title in enumerate(titles, start=1):
            _draw_mixture(grid[row][column], by_title[title], size)
        for axes in grid[row]:
            bare(axes)
            across, up = _square(x)
            axes.set(xlim=across, ylim=up)
    for axes, title in zip(grid[0], ["data", *titles], strict=True):
        axes.set_title(title, fontsize=10)
    return figure


def _square(x: np.ndarray) -> list[tuple[float, float]]:
    """Limits of both axes, equally long, so that circles are round."""
    half = 0.55 * float(np.ptp(x, axis=0).max()) + 0.1
    middle = (x.min(axis=0) + x.max(axis=0)) / 2
    return [(float(m) - half, float(m) + half) for m in middle]


def _draw_mixture(axes: Axes, drawing: MixtureDrawing, size: float) -> None:
    axes.scatter(*drawing.points.T, s=size, c=[COLOURS[k] for k in drawing.labels], linewidths=0)
    for colour, centre, outline in zip(COLOURS, drawing.centres, drawing.outlines, strict=False):
        axes.plot(*outline.T, color=colour, linewidth=1)
        axes.plot(*centre, marker="+", color=colour, markersize=7)


def convergence(gaps: Mapping[str, np.ndarray], title: str) -> Figure:
    """The paired gap over the paper's K, mean and two standard errors over instances; zero is the exact posterior."""
    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axes = figure.subplots()
    for colour, (label, gap) in zip(COLOURS, gaps.items(), strict=False):
        k = np.arange(1, gap.shape[1] + 1)
        mean, error = gap.mean(axis=0), gap.std(axis=0, ddof=1) / np.sqrt(len(gap))
        axes.plot(k, mean, color=colour, label=label)
        axes.fill_between(k, mean - 2 * error, mean + 2 * error, color=colour, alpha=0.2, linewidth=0)
    axes.axhline(0, color="0.5", linewidth=0.8, linestyle="--")
    axes.set(xlabel="K (1 is the initial proposal)", ylabel="log joint − log joint at the truth", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    return figure


def training_curves(steps: Sequence[int], loss: np.ndarray, ess: np.ndarray, labels: Sequence[str]) -> Figure:
    """Loss and effective sample size by block over training."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    for colour, label, block_loss, block_ess in zip(COLOURS, labels, loss.T, ess.T, strict=False):
        left.plot(steps, block_loss, color=colour, label=label)
        right.plot(steps, block_ess, color=colour, label=label)
    left.set(xlabel="step", ylabel="−Σ w̄ log q")
    right.set(xlabel="step", ylabel="effective sample size")
    right.legend(frameon=False)
    return figure


def convergence_on_one(result: Mapping[str, Any]) -> Figure:
    """Runs on one instance: the mean log joint over the paper's K, and the band from the 10% to the 90% quantile."""
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes = figure.subplots()
    best = max(curve["mean"][-1] for curve in result["methods"].values())
    for number, (label, curve) in enumerate(result["methods"].items()):
        k, colour = np.arange(1, len(curve["mean"]) + 1), f"C{number}"
        axes.plot(k, np.asarray(curve["mean"]) - best, color=colour, label=label)
        band = [np.asarray(curve[name]) - best for name in ("low", "high")]
        axes.fill_between(k, *band, color=colour, alpha=0.15, linewidth=0)
    axes.set_yscale("symlog", linthresh=10.0)
    axes.set(xlabel="K (1 is the initial proposal)", ylabel=f"log joint + {-best:.1f}", title=f"{result['runs']} runs")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    return figure


def fixed_budget(result: Mapping[str, Any]) -> Figure:
    """Block strategies over K at constant K·L: the log joint and ESS/L, with two standard errors."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, name, label in ((left, "log_joint", "log joint"), (right, "ess_share", "ESS/L")):
        for colour, (strategy, by_k) in zip(COLOURS, result["strategies"].items(), strict=False):
            means, errors = (np.array([entry[name][of] for entry in by_k.values()]) for of in ("mean", "se"))
            axes.errorbar([int(k) for k in by_k], means, 2 * errors, color=colour, marker="o", ms=3, label=strategy)
        axes.set_xscale("log")
        axes.set(xlabel=f"K, with L = {result['budget']}/K", ylabel=label)
    right.legend(frameon=False)
    return figure


def learning(result: Mapping[str, Any]) -> Figure:
    """A measure over training steps with two standard errors, one line per K."""
    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axes = figure.subplots()
    for colour, (k, curve) in zip(COLOURS, result["by_k"].items(), strict=False):
        steps, label = [int(step) for step in curve], f"K={k}, L={result['budget'] // int(k)}"
        means, errors = (np.array([entry[of] for entry in curve.values()]) for of in ("mean", "se"))
        axes.plot(steps, means, color=colour, label=label)
        # On a logarithmic scale a band must stay above zero.
        axes.fill_between(
            steps, np.maximum(means - 2 * errors, means / 10), means + 2 * errors, color=colour, alpha=0.2, linewidth=0
        )
    axes.set_yscale("log")
    axes.set(xlabel="training step", ylabel=result["measure"])
    axes.legend(frameon=False)
    return figure
