"""Tracked videos as strips and as animations, from existing samples."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from popgibbs.paper.experiment import Film
from popgibbs.paper.plots.figures import COLOURS, bare

NUM_SHOWN = 15  # frames of a strip
FRAMES_PER_SECOND = 8


def strip(films: Sequence[Mapping[str, Film]]) -> Figure:
    """Frames from the first to the last of every video: one row with boxes and one reconstructed row per title."""
    num_frames = len(_any(films).frames)
    shown = np.unique(np.linspace(0, num_frames - 1, NUM_SHOWN).round()).astype(int).tolist()
    rows = [(title, film) for by_title in films for title, film in by_title.items()]
    figure = _figure(0.8 * len(shown), 1.6 * len(rows))
    grid = figure.subplots(2 * len(rows), len(shown), squeeze=False)
    for row, (title, film) in enumerate(rows):
        for column, t in enumerate(shown):
            _show_boxes(grid[2 * row][column], film, t)
            _show(grid[2 * row + 1][column], film.rebuilt[t])
        grid[2 * row][0].set_ylabel(title, fontsize=8)
    for axes, t in zip(grid[0], shown, strict=True):
        axes.set_title(f"t={t + 1}", fontsize=8)
    return figure


def save_animation(films: Sequence[Mapping[str, Film]], path: Path) -> None:
    """A GIF with one column per title: frames with boxes above, reconstructed frames below."""
    titles = list(films[0])
    figure = _figure(1.6 * len(titles), 3.3 * len(films))
    grid = figure.subplots(2 * len(films), len(titles), squeeze=False)
    updates: list[Callable[[int], None]] = []
    for row, by_title in enumerate(films):
        for column, (title, film) in enumerate(by_title.items()):
            updates += [_live(grid[2 * row][column], film), _live_rebuilt(grid[2 * row + 1][column], film)]
            if row == 0:
                grid[0][column].set_title(title, fontsize=9)

    def update(t: int) -> list[Axes]:
        for one in updates:
            one(t)
        return []

    path.parent.mkdir(parents=True, exist_ok=True)
    animation = FuncAnimation(figure, update, frames=len(_any(films).frames))  # pyright: ignore[reportArgumentType]
    animation.save(str(path), writer=PillowWriter(fps=FRAMES_PER_SECOND), dpi=80)


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
    return figure


def _any(films: Sequence[Mapping[str, Film]]) -> Film:
    return next(iter(films[0].values()))


def _show(axes: Axes, frame: np.ndarray) -> None:
    axes.imshow(frame, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    bare(axes)


def _show_boxes(axes: Axes, film: Film, t: int) -> list[Rectangle]:
    _show(axes, film.frames[t])
    boxes = [
        Rectangle(_corner(box), box[2], box[3], fill=False, edgecolor=COLOURS[k % len(COLOURS)], linewidth=1)
        for k, box in enumerate(film.boxes[t])
    ]
    for box in boxes:
        axes.add_patch(box)
    # Fixed limits, because a box that sticks out would shrink the picture.
    height, width = film.frames[t].shape
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    return boxes


def _corner(box: np.ndarray) -> tuple[float, float]:
    """Matplotlib puts the middle of a pixel at whole numbers, boxes its corner."""
    return float(box[0]) - 0.5, float(box[1]) - 0.5


def _live(axes: Axes, film: Film) -> Callable[[int], None]:
    boxes = _show_boxes(axes, film, 0)

    def update(t: int) -> None:
        axes.images[0].set_data(film.frames[t])
        for box, place in zip(boxes, film.boxes[t], strict=True):
            box.set_xy(_corner(place))

    return update


def _live_rebuilt(axes: Axes, film: Film) -> Callable[[int], None]:
    _show(axes, film.rebuilt[0])
    return lambda t: axes.images[0].set_data(film.rebuilt[t])
