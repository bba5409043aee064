"""Building a checked sampler from a model, blocks and an example."""

from popgibbs.building.factory import build
from popgibbs.building.lanes import lanes

__all__ = [
    "build",
    "lanes",
]
