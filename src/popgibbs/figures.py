"""Figures from results that exist; nothing here samples."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.ticker import MaxNLocator

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, bbox_inches="tight")


def _bare(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("0.8")


def mixture_samples(
    points: Sequence[np.ndarray],
    samples: Sequence[Mapping[str, Mapping[str, np.ndarray]]],
    titles: Sequence[str],
) -> Figure:
    """A row an instance: the data, then one sample after chosen sweeps, as coloured points and two-deviation ellipses.

    `samples[i][title]` holds the sites of one sample: `mu`, `tau`, `c`.
    """
    columns = 1 + len(titles)
    figure = Figure(figsize=(2.1 * columns, 2.1 * len(points)), layout="constrained")
    grid = figure.subplots(len(points), columns, squeeze=False)
    for row, (x, by_title) in enumerate(zip(points, samples, strict=True)):
        grid[row][0].scatter(*x.T, s=6, color="0.35", linewidths=0)
        for column, title in enumerate(titles, start=1):
            _draw_mixture(grid[row][column], x, by_title[title])
        for axes in grid[row]:
            _bare(axes)
            axes.set_xlim(*_limits(x[:, 0]))
            axes.set_ylim(*_limits(x[:, 1]))
    for axes, title in zip(grid[0], ["data", *titles], strict=True):
        axes.set_title(title, fontsize=10)
    return figure


def _limits(values: np.ndarray) -> tuple[float, float]:
    margin = 0.1 * np.ptp(values) + 0.1
    return float(values.min() - margin), float(values.max() + margin)


def _draw_mixture(axes: Axes, x: np.ndarray, sample: Any) -> None:
    axes.scatter(*x.T, s=6, c=[COLOURS[k] for k in sample["c"]], linewidths=0)
    mean: Any
    precision: Any
    for colour, mean, precision in zip(COLOURS, sample["mu"], sample["tau"], strict=False):
        width, height = 4 * precision**-0.5
        axes.add_patch(Ellipse(tuple(mean), width, height, fill=False, edgecolor=colour, linewidth=1.2))
        axes.plot(*mean, marker="+", color=colour, markersize=7)


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
