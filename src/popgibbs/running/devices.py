"""Spreading a batch of instances over devices.

XLA on CPU runs the many small operations of a sampler on one core; a process that shows several host devices (the command
line sets their number) uses them all, each for its share of the batch. Devices never talk to each other inside a compiled
program: on CPU a collective holds a thread while it waits, and with as many devices as threads the wait can be for ever.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

AXIS = "instances"
SHARED = Spec()
BY_INSTANCE = Spec(AXIS)
BY_SWEEP_AND_INSTANCE = Spec(None, AXIS)


def mesh_for(num_instances: int) -> Mesh:
    """The most local devices that divide the instances evenly."""
    devices = jax.local_devices()
    count = max(n for n in range(1, len(devices) + 1) if num_instances % n == 0)
    return Mesh(np.array(devices[:count]), (AXIS,))


def even_rows(num_instances: int) -> int:
    """The least number of rows, not below that of the instances, of which every device gets the same number."""
    per_device = -(-num_instances // jax.local_device_count())
    return -(-num_instances // per_device) * per_device


def over_instances(function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """Each device calls the function on its part of the instances."""
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def on_all(tree: Any, mesh: Mesh) -> Any:
    """A copy of the arrays on every device of the mesh."""
    return tree if mesh.size == 1 else jax.device_put(tree, NamedSharding(mesh, SHARED))


def spread(tree: Any, mesh: Mesh) -> Any:
    """Arrays with instances as their leading axis, each device of the mesh holding its part."""
    return tree if mesh.size == 1 else jax.device_put(tree, NamedSharding(mesh, BY_INSTANCE))


def on_first(tree: Any, mesh: Mesh) -> Any:
    """Arrays that are spread over the mesh, together on its first device."""
    return jax.device_put(tree, mesh.devices.flat[0])
