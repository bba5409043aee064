"""Spreading a batch of instances over devices.

XLA on CPU runs the many small operations of a sampler on one core; a process with several host devices (the command line
sets their number) uses all of them, each for its share of the batch. Compiled programs contain no communication between
devices: on CPU a collective blocks a thread while it waits, and with as many devices as threads it can wait forever.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

AXIS = "instances"
SHARED = Spec()
BY_INSTANCE = Spec(AXIS)
BY_SWEEP_AND_INSTANCE = Spec(None, AXIS)


def mesh_for(num_instances: int) -> Mesh:
    """A mesh of the largest number of local devices that divides the instances evenly."""
    devices = jax.local_devices()
    count = max(n for n in range(1, len(devices) + 1) if num_instances % n == 0)
    return Mesh(np.array(devices[:count]), (AXIS,))


def even_rows(num_instances: int) -> int:
    """The number of instances rounded up so that every device gets the same number of rows."""
    per_device = -(-num_instances // jax.local_device_count())
    return -(-num_instances // per_device) * per_device


def over_instances(function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """A function that each device calls on its part of the instances."""
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def on_all(tree: Any, mesh: Mesh) -> Any:
    """A tree with a copy of its arrays on every device of the mesh."""
    arrays, static = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.device_put(arrays, NamedSharding(mesh, SHARED)), static)


def spread(tree: Any, mesh: Mesh) -> Any:
    """Arrays with instances as their leading axis, divided over the devices of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, BY_INSTANCE))


def on_first(tree: Any, mesh: Mesh) -> Any:
    """Arrays that were divided over the mesh, gathered on its first device."""
    return jax.device_put(tree, mesh.devices.flat[0])
