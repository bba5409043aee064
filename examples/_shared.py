"""Sizes of the runs, and the picture that most examples draw."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")  # pictures are saved, never shown
import matplotlib.pyplot as plt
import numpy as np

SMOKE = "--smoke" in sys.argv
SAMPLING: dict[str, Any] = (
    {"num_populations": 2, "num_particles": 4, "num_sweeps": 2}
    if SMOKE
    else {"num_populations": 10, "num_particles": 20, "num_sweeps": 19}
)
TRAINING: dict[str, Any] = (
    {"num_steps": 2, "num_particles": 4, "batch_size": 2, "progress": False} if SMOKE else {"num_steps": 2_000}
)


def save(figure: Any, name: str) -> None:
    """Save a figure as a PNG in the current directory, and say so."""
    path = Path(f"{name}.png")
    figure.savefig(path, dpi=150, bbox_inches="tight")
    print(f"saved {path}")


def draw_intervals(
    name: str, posteriors: Mapping[str, Any], sites: Sequence[str], truth: Mapping[str, Any] | None = None
) -> None:
    """Save 90% intervals of the sites by several samplers, with the generating values where they are known."""
    sizes = [next(iter(posteriors.values()))[0][site][0, 0].size for site in sites]
    widths = [max(size, 4) for size in sizes]
    figure, panels = plt.subplots(
        1, len(sites), figsize=(2 + 0.22 * sum(widths), 3.2), width_ratios=widths, layout="constrained", squeeze=False
    )
    for panel, site, size in zip(panels[0], sites, sizes, strict=True):
        for place, (label, posterior) in enumerate(posteriors.items()):
            rows = posterior.summary(0)
            rows = rows[[row.partition("[")[0] == site for row in rows.index.get_level_values("site")]]
            at = np.arange(size) + 0.3 * (place - 0.5 * (len(posteriors) - 1))
            panel.vlines(at, rows["q5"], rows["q95"], color=f"C{place}", linewidth=3, label=label)
            panel.plot(at, rows["median"], "o", color="white", markeredgecolor=f"C{place}", markersize=4)
        if truth is not None:
            panel.plot(np.arange(size), np.ravel(truth[site]), "kx", label="generating value")
        panel.set(title=site, xticks=range(0, size, max(1, size // 6)), xlim=(-0.8, size - 0.2))
    panels[0, -1].legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, name)
