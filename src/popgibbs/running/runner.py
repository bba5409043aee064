"""Running a sampler over all instances of a bucket, in batches and over devices, with keys by index."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.random import fold_in
from jax.sharding import Mesh
from jaxtyping import Array

from popgibbs._random import unrolled
from popgibbs._typing import PRNGKey
from popgibbs.data import Bucket, Data, filled_rows, on_grid
from popgibbs.running.carried import carried_errors, check_carried
from popgibbs.running.devices import (
    BY_INSTANCE,
    BY_SWEEP_AND_INSTANCE,
    SHARED,
    even_rows,
    mesh_for,
    on_all,
    over_instances,
    spread,
)
from popgibbs.smc import BuiltSampler, Info, Population, over_populations, run, sweep_on

CHUNK = 32  # sweeps that one call of a compiled program runs at most; its record of them has this fixed length


@dataclass(frozen=True, kw_only=True)
class Runner:
    """A sampler with its budget per instance."""

    sampler: BuiltSampler
    num_particles: int
    num_populations: int
    batch_size: int

    def run(
        self,
        key: PRNGKey,
        bucket: Bucket,
        num_sweeps: int,
        *,
        after: Population | None = None,
        first_sweep: int = 1,
        report: Callable[[int], None] | None = None,
    ) -> tuple[Population, Info]:
        """Run the initial step and the sweeps, or more sweeps of the populations in `after`.

        `report` is called with the number of instances of each finished batch.
        """
        size = even_rows(min(self.batch_size, on_grid(len(bucket))))  # a number of rows that other calls have too
        parts = []
        for begin in range(0, len(bucket), size):
            real = min(size, len(bucket) - begin)
            rows = begin + filled_rows(real, size)  # so that all batches have one shape
            data, before = jax.tree.map(lambda leaf: leaf[rows], (bucket.data, after))  # noqa: B023
            moved, info, errors = self._run_batch(key, bucket.indices[rows], data, before, first_sweep, num_sweeps)
            parts.append((jax.tree.map(lambda a: a[:real], moved), jax.tree.map(lambda a: a[:, :real], info)))  # noqa: B023
            check_carried(self.sampler, bucket.indices[rows], data, moved, np.maximum(errors, info.stale.max(axis=0)))
            if report is not None:
                report(real)
        populations, infos = zip(*parts, strict=True)
        return (
            jax.tree.map(lambda *leaves: np.concatenate(leaves), *populations),
            jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *infos),
        )

    def _run_batch(
        self,
        key: PRNGKey,
        indices: np.ndarray,
        data: Data,
        population: Population | None,
        first_sweep: int,
        num_sweeps: int,
    ) -> tuple[Population, Info, np.ndarray]:
        """Run a batch, on the host: also returns the disagreement of carried log-probabilities.

        There is one compiled program for the first draw and one for sweeps, whatever their number.
        """
        mesh = mesh_for(len(indices))
        sampler, key = on_all((self.sampler, key), mesh)
        # Arrays are placed in the same way whether they come from the user or from another program, because JAX
        # compiles a program again for arrays that are placed differently.
        indices, data, population = spread((indices, data, population), mesh)
        infos, errors = [], np.zeros(())
        if population is None:
            population, info = _begin(sampler, key, indices, data, mesh, self.num_particles, self.num_populations)
            infos.append(jax.device_get(jax.block_until_ready(info)))
        for begin in range(0, num_sweeps, CHUNK):
            count = min(CHUNK, num_sweeps - begin)
            numbers = on_all((np.asarray(first_sweep + begin), np.asarray(count)), mesh)
            population, info, found = _sweep_on(sampler, key, indices, data, population, mesh, *numbers)
            # Ctrl-C interrupts this wait, but not a copy to the host.
            info, errors = jax.device_get(jax.block_until_ready((info, found)))
            infos.append(jax.tree.map(lambda leaf: leaf[:count], info))  # noqa: B023
        if not num_sweeps:
            errors = np.zeros((*infos[0].log_evidence.shape[1:], len(self.sampler.sites)))
        joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *infos)
        return jax.device_get(population), joined, errors


def instance_keys(key: PRNGKey, indices: Array) -> Array:
    """The key of each instance, which depends on its index but not on the batch."""
    return jax.vmap(lambda index: fold_in(unrolled(key), index))(indices)


@eqx.filter_jit
def _begin(
    sampler: BuiltSampler,
    key: PRNGKey,
    indices: Any,
    data: Data,
    mesh: Mesh,
    num_particles: int,
    num_populations: int,
) -> tuple[Population, Info]:
    """The initial step of a batch of instances, over all devices."""
    arrays, static = eqx.partition(sampler, eqx.is_array)
    budget: Any = {"num_particles": num_particles, "num_populations": num_populations}

    def local(arrays: Any, key: PRNGKey, indices: Array, data: Data) -> tuple[Population, Info]:
        return run(eqx.combine(arrays, static), instance_keys(key, indices), data, num_sweeps=0, **budget)[:2]

    specs = (SHARED, SHARED, BY_INSTANCE, BY_INSTANCE)
    return over_instances(local, mesh, specs, (BY_INSTANCE, BY_SWEEP_AND_INSTANCE))(arrays, key, indices, data)


@eqx.filter_jit
def _sweep_on(
    sampler: BuiltSampler,
    key: PRNGKey,
    indices: Any,
    data: Data,
    population: Population,
    mesh: Mesh,
    first_sweep: Array,
    count: Array,
) -> tuple[Population, Info, Array]:
    """Up to `CHUNK` sweeps of a batch of instances, over all devices; also checks carried log-probabilities."""
    arrays, static = eqx.partition(sampler, eqx.is_array)

    def local(
        arrays: Any, key: PRNGKey, indices: Array, data: Data, population: Population, first: Array, count: Array
    ) -> tuple[Population, Info, Array]:
        sampler, keys = eqx.combine(arrays, static), instance_keys(key, indices)
        moved, info = sweep_on(sampler, keys, data, population, first_sweep=first, num_sweeps=count, capacity=CHUNK)
        return moved, info, over_populations(carried_errors, sampler, data, moved)

    specs = (SHARED, SHARED, BY_INSTANCE, BY_INSTANCE, BY_INSTANCE, SHARED, SHARED)
    by_device = over_instances(local, mesh, specs, (BY_INSTANCE, BY_SWEEP_AND_INSTANCE, BY_INSTANCE))
    return by_device(arrays, key, indices, data, population, first_sweep, count)
