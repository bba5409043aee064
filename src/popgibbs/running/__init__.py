"""Running a sampler over batches of instances and over devices."""

from popgibbs.running.devices import BY_INSTANCE, SHARED, even_rows, mesh_for, on_all, on_first, over_instances, spread
from popgibbs.running.runner import Runner, instance_keys

__all__ = [
    "BY_INSTANCE",
    "even_rows",
    "instance_keys",
    "mesh_for",
    "on_all",
    "on_first",
    "over_instances",
    "Runner",
    "SHARED",
    "spread",
]
