"""From a model, blocks and an example to a checked sampler."""

from popgibbs.building.factory import build
from popgibbs.building.lanes import lanes

__all__ = [
    "build",
    "lanes",
]
