"""Running a sampler over all instances of a bucket: batches, devices, keys by index."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.random import fold_in
from jaxtyping import Array

from popgibbs._typing import PRNGKey
from popgibbs.data import Bucket, Data
from popgibbs.running.carried import carried_errors, check_carried
from popgibbs.running.devices import BY_INSTANCE, BY_SWEEP_AND_INSTANCE, SHARED, filled_up, mesh_for, over_instances
from popgibbs.smc import Info, Population, Sampler, go_on, over_populations, run


@dataclass(frozen=True, kw_only=True)
class Runner:
    """A sampler with what it spends on an instance."""

    sampler: Sampler
    num_particles: int
    num_populations: int
    batch_size: int

    def begin(
        self, key: PRNGKey, bucket: Bucket, num_sweeps: int, report: Callable[[int], None] | None = None
    ) -> tuple[Population, Info]:
        """Initial step and sweeps; `report` is told of instances as they are done."""

        def call(keys: Array, data: Data, _: None) -> Any:
            return _begin(self.sampler, keys, data, num_sweeps, self.num_particles, self.num_populations)

        return self._in_batches(call, key, bucket, None, report)

    def go_on(
        self, key: PRNGKey, bucket: Bucket, population: Population, first_sweep: int, num_sweeps: int
    ) -> tuple[Population, Info]:
        """More sweeps."""

        def call(keys: Array, data: Data, population: Population) -> Any:
            return _go_on(self.sampler, keys, data, population, jnp.asarray(first_sweep), num_sweeps)

        return self._in_batches(call, key, bucket, population)

    def _in_batches(
        self, call: Any, key: PRNGKey, bucket: Bucket, population: Any, report: Callable[[int], None] | None = None
    ) -> tuple[Population, Info]:
        size = filled_up(min(self.batch_size, len(bucket)))
        parts = []
        for begin in range(0, len(bucket), size):
            # Batches are filled up with their first instance, so that all have one shape.
            rows = np.arange(begin, begin + size)
            rows = np.where(rows < len(bucket), rows, begin)
            keys = jax.vmap(lambda index: fold_in(key, index))(jnp.asarray(bucket.indices[rows]))
            data, before = jax.tree.map(lambda leaf: leaf[rows], (bucket.data, population))  # noqa: B023
            real = min(size, len(bucket) - begin)
            # Waiting lets Ctrl-C through, which copying to the host does not.
            after, info, errors = jax.device_get(jax.block_until_ready(call(keys, data, before)))
            parts.append((jax.tree.map(lambda a: a[:real], after), jax.tree.map(lambda a: a[:, :real], info)))  # noqa: B023
            check_carried(self.sampler, bucket.indices[rows], data, after, np.maximum(errors, info.stale.max(axis=0)))
            if report is not None:
                report(real)
        populations, infos = zip(*parts, strict=True)
        return (
            jax.tree.map(lambda *leaves: np.concatenate(leaves), *populations),
            jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *infos),
        )


@eqx.filter_jit
def _begin(
    sampler: Sampler, keys: Array, data: Data, num_sweeps: int, num_particles: int, num_populations: int
) -> tuple[Population, Info, Array]:
    arrays, static = eqx.partition(sampler, eqx.is_array)

    def local(arrays: Any, keys: Array, data: Data) -> tuple[Population, Info, Array]:
        sampler = eqx.combine(arrays, static)
        population, info, _ = run(
            sampler,
            keys,
            data,
            num_sweeps=num_sweeps,
            num_particles=num_particles,
            num_populations=num_populations,
        )
        return population, info, over_populations(carried_errors, sampler, data, population)

    specs = (SHARED, BY_INSTANCE, BY_INSTANCE)
    spread = over_instances(local, mesh_for(keys.shape[0]), specs, (BY_INSTANCE, BY_SWEEP_AND_INSTANCE, BY_INSTANCE))
    return spread(arrays, keys, data)


@eqx.filter_jit
def _go_on(
    sampler: Sampler, keys: Array, data: Data, population: Population, first_sweep: Array, num_sweeps: int
) -> tuple[Population, Info, Array]:
    arrays, static = eqx.partition(sampler, eqx.is_array)

    def local(
        arrays: Any, keys: Array, data: Data, population: Population, first: Array
    ) -> tuple[Population, Info, Array]:
        sampler = eqx.combine(arrays, static)
        population, info = go_on(sampler, keys, data, population, first, num_sweeps)
        return population, info, over_populations(carried_errors, sampler, data, population)

    specs = (SHARED, BY_INSTANCE, BY_INSTANCE, BY_INSTANCE, SHARED)
    spread = over_instances(local, mesh_for(keys.shape[0]), specs, (BY_INSTANCE, BY_SWEEP_AND_INSTANCE, BY_INSTANCE))
    return spread(arrays, keys, data, population, first_sweep)
