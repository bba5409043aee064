"""The graph of a model as a figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, FancyArrowPatch, FancyBboxPatch, Patch

from popgibbs.describing.colours import OBSERVED, colour
from popgibbs.describing.layout import places

# Lengths are in rows of the layout.
_INCHES = 0.85  # per row
_HEIGHT = 0.56  # of a node
_MARGIN = 0.16  # between a box and the boxes and nodes inside it
_LABEL = 0.14  # room for a plate's label
_LOOP = 0.3  # how far a loop stands out
_LINE, _BOX, _FAINT = "#444444", "#888888", "#555555"


def draw(sites: Sequence[Any], plates: Mapping[str, int], blocks: Sequence[tuple[str, tuple[str, ...]]]) -> Figure:
    """Sites as nodes in the colours of their blocks, plates as boxes, edges from parent to child."""
    members = {plate: [site.name for site in sites if plate in site.plates] for plate in plates}
    edges = [(parent, site.name) for site in sites for parent in site.parents]
    reach = {site.name: max(0.17 + 0.055 * len(site.name), _HEIGHT / 2) for site in sites}  # half the width of a node
    column = max(2 * max(reach.values()) + 0.45, 1.0)
    place = places(list(reach), edges, members) * np.array([column, -1.0])
    at = dict(zip(reach, place, strict=True))
    sides = {site.name: np.array([reach[site.name] + _LOOP * site.follows_itself, _HEIGHT / 2]) for site in sites}

    figure = Figure()
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    corners = [corner for name in at for corner in (at[name] - sides[name], at[name] + sides[name])]
    for plate, depth in _depths(members).items():
        low = np.min([at[name] - sides[name] for name in members[plate]], axis=0) - depth * _MARGIN - [0, depth * _LABEL]
        high = np.max([at[name] + sides[name] for name in members[plate]], axis=0) + depth * _MARGIN
        label = f"{plate} · {plates[plate]:,}"
        room = max(0.085 * len(label) + 0.1 - (high[0] - low[0]), 0.0)
        low[0], high[0] = low[0] - room / 2, high[0] + room / 2
        _box(axes, low, high, label)
        corners += [low, high]

    fills = {name: colour(i) for i, (_, inside) in enumerate(blocks) for name in inside}
    nodes: dict[str, Any] = {}
    for name in reach:
        nodes[name] = axes.add_patch(
            Ellipse(at[name], 2 * reach[name], _HEIGHT, facecolor=fills.get(name, OBSERVED), edgecolor=_LINE, zorder=3)
        )
        axes.text(at[name][0], at[name][1], name, ha="center", va="center", fontsize=10, zorder=4)
    for parent, child in edges:
        _arrow(axes, at[parent], at[child], patchA=nodes[parent], patchB=nodes[child])
    for site in sites:
        if site.follows_itself:
            side = at[site.name] + np.array([0.87 * reach[site.name], 0.0])  # where the ellipse has half its height
            above = np.array([0.0, _HEIGHT / 4])
            style = f"arc3,rad={-4 * _LOOP / _HEIGHT:.2f}"
            _arrow(axes, side + above, side - above, connectionstyle=style)

    low, high = np.min(corners, axis=0) - 0.1, np.max(corners, axis=0) + 0.1
    handles = [Patch(facecolor=colour(i), edgecolor=_LINE, label=name) for i, (name, _) in enumerate(blocks)]
    handles.append(Patch(facecolor=OBSERVED, edgecolor=_LINE, label="observed"))
    high[0] += 0.9 + 0.1 * max(len(name) for name, _ in [*blocks, ("observed", ())])
    low[1] = min(low[1], high[1] - 0.3 * (len(handles) + 1))
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    axes.legend(handles=handles, title="blocks", loc="center right", frameon=False, fontsize=9, alignment="left")
    figure.set_size_inches((high - low) * _INCHES)
    return figure


def _depths(members: Mapping[str, list[str]]) -> dict[str, int]:
    """How many boxes each box has to make room for, counting itself; those that share a node never share a border."""
    depths: dict[str, int] = {}
    for plate in sorted((plate for plate in members if members[plate]), key=lambda plate: len(members[plate])):
        sharing = [depth for other, depth in depths.items() if set(members[other]) & set(members[plate])]
        depths[plate] = 1 + max(sharing, default=0)
    return depths


def _box(axes: Any, low: Any, high: Any, label: str) -> None:
    style = "round,pad=0,rounding_size=0.12"
    axes.add_patch(FancyBboxPatch(low, *(high - low), boxstyle=style, facecolor="none", edgecolor=_BOX, zorder=1))
    axes.text(high[0] - 0.08, low[1] + 0.06, label, ha="right", va="bottom", fontsize=8, color=_FAINT)


def _arrow(axes: Any, begin: Any, end: Any, **options: Any) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 11, "color": _LINE, "shrinkA": 0, "shrinkB": 0, "zorder": 2}
    axes.add_patch(FancyArrowPatch(begin, end, **style, **options))
