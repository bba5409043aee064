"""Places for the nodes of a graph: parents above children, and only its own nodes inside the box of a plate.

Places minimise a sum of penalties by local search. Plates may be nested or cross each other, so no simple order of nodes
suits all of them, and graphs of models are small enough to search.
"""

from collections.abc import Mapping, Sequence

import numpy as np

_STEP = 0.5  # between columns
_NUM_STARTS = 6
_MOST_PASSES = 30
_WRONG = 100.0  # the penalty of what must not be, such as a child above its parent
_UGLY = 6.0  # the penalty of what should not be, such as edges that cross


def places(names: Sequence[str], edges: Sequence[tuple[str, str]], members: Mapping[str, Sequence[str]]) -> np.ndarray:
    """The column and row of every node, for edges from parent to child and the nodes in each plate; row 0 is on top."""
    index = {name: i for i, name in enumerate(names)}
    pairs = np.array([(index[a], index[b]) for a, b in edges if a != b], int).reshape(-1, 2)
    groups = [np.array([index[name] for name in inside]) for inside in members.values() if len(inside)]
    layout = _Layout(len(names), pairs, groups)
    found = [layout.searched(np.random.default_rng(seed)) for seed in range(_NUM_STARTS)]
    best = min(found, key=lambda pair: pair[0])[1]
    return best - best.min(axis=0)


class _Layout:
    def __init__(self, size: int, edges: np.ndarray, groups: list[np.ndarray]):
        self.size, self.edges, self.groups = size, edges, groups
        self.ranks = np.zeros(size)
        for _ in range(size):
            for parent, child in edges:
                self.ranks[child] = max(self.ranks[child], self.ranks[parent] + 1)
        width = max(np.bincount(self.ranks.astype(int)).max(), 2) + 0.5
        columns = np.arange(-width / 2, width / 2 + _STEP, _STEP)
        rows = np.arange(-1, self.ranks.max() + 2)
        self.grid = np.stack(np.meshgrid(columns, rows), axis=-1).reshape(-1, 2)

    def searched(self, generator: np.random.Generator) -> tuple[float, np.ndarray]:
        """The best cost and places from one random start: nodes move one by one, or all nodes of a plate together."""
        place = np.stack([generator.choice(self.grid[:, 0], self.size), self.ranks], axis=1)
        parts = [np.array([i]) for i in range(self.size)] + self.groups
        steps = np.stack(np.meshgrid(np.arange(-2, 2.5, _STEP), np.arange(-1, 2)), axis=-1).reshape(-1, 2)
        cost = float(self.costs(place[None])[0])
        for _ in range(_MOST_PASSES):
            before = cost
            for part in parts:
                single = len(part) == 1
                tried = np.repeat(place[None], len(self.grid if single else steps), axis=0)
                tried[:, part] = self.grid[:, None] if single else tried[:, part] + steps[:, None]
                costs = self.costs(tried)
                if costs.min() < cost - 1e-9:
                    cost, place = float(costs.min()), tried[costs.argmin()]
            if cost == before:
                break
        return cost, place

    def costs(self, place: np.ndarray) -> np.ndarray:
        """The penalty of each of several layouts, with axes (layout, node, 2)."""
        total = 0.02 * np.sum((place - place.mean(axis=1, keepdims=True)) ** 2, axis=(1, 2))
        gap = np.abs(place[:, :, None] - place[:, None, :])
        clash = (gap[..., 0] < 1) & (gap[..., 1] < 1)
        total += _WRONG * (clash.sum(axis=(1, 2)) - self.size)
        return total + self._edge_costs(place) + self._plate_costs(place)

    def _edge_costs(self, place: np.ndarray) -> np.ndarray:
        begin, end = place[:, self.edges[:, 0]], place[:, self.edges[:, 1]]
        step = end - begin
        total = np.sum(_WRONG * (step[..., 1] < 1) + 0.6 * step[..., 0] ** 2 + 0.5 * step[..., 1] ** 2, axis=1)
        # Nodes that lie on an edge.
        length = np.maximum(np.sum(step**2, axis=-1), 1e-9)
        along = np.sum((place[:, None] - begin[:, :, None]) * step[:, :, None], axis=-1) / length[..., None]
        nearest = begin[:, :, None] + np.clip(along, 0, 1)[..., None] * step[:, :, None]
        near = np.sum((place[:, None] - nearest) ** 2, axis=-1) < 0.4**2
        total += 5 * _UGLY * (near.sum(axis=(1, 2)) - 2 * len(self.edges))
        # Edges that cross: the ends of each lie on different sides of the other.
        side_begin, side_end = (_side(begin, step, point) for point in (begin, end))
        apart = side_begin * side_end < -1e-9
        return total + _UGLY * np.sum(apart & np.swapaxes(apart, 1, 2), axis=(1, 2)) / 2

    def _plate_costs(self, place: np.ndarray) -> np.ndarray:
        total = np.zeros(len(place))
        boxes = [(place[:, group].min(axis=1) - 0.5, place[:, group].max(axis=1) + 0.5) for group in self.groups]
        for i, (low, high) in enumerate(boxes):
            inside = np.all((place > low[:, None] - 0.25) & (place < high[:, None] + 0.25), axis=-1)
            total += _WRONG * (inside.sum(axis=1) - len(self.groups[i])) + 0.3 * np.sum(high - low, axis=1)
            for j, (other_low, other_high) in enumerate(boxes[:i]):
                if not set(self.groups[i]) & set(self.groups[j]):
                    overlap = np.all((low < other_high + 0.2) & (other_low < high + 0.2), axis=-1)
                    total += _WRONG * overlap
        return total


def _side(begin: np.ndarray, step: np.ndarray, point: np.ndarray) -> np.ndarray:
    """On which side of each edge every point lies, with axes (layout, edge, point)."""
    offset = point[:, None] - begin[:, :, None]
    return step[:, :, None, 0] * offset[..., 1] - step[:, :, None, 1] * offset[..., 0]
