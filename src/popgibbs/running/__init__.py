"""A sampler over batches of instances and devices."""

from popgibbs.running.devices import BY_INSTANCE, SHARED, filled_up, mesh_for, on_all, on_first, over_instances
from popgibbs.running.runner import Runner

__all__ = [
    "BY_INSTANCE",
    "filled_up",
    "mesh_for",
    "on_all",
    "on_first",
    "over_instances",
    "Runner",
    "SHARED",
]
