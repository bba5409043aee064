"""Running a sampler over all instances of a bucket, in batches and over devices, with keys by index."""

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
from popgibbs.data import Bucket, Data, filled_rows
from popgibbs.running.carried import carried_errors, check_carried
from popgibbs.running.devices import BY_INSTANCE, BY_SWEEP_AND_INSTANCE, SHARED, even_rows, mesh_for, over_instances
from popgibbs.smc import BuiltSampler, Info, Population, extend, over_populations, run


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
        size = even_rows(min(self.batch_size, len(bucket)))
        parts = []
        for begin in range(0, len(bucket), size):
            real = min(size, len(bucket) - begin)
            rows = begin + filled_rows(real, size)  # so that all batches have one shape
            keys = instance_keys(key, jnp.asarray(bucket.indices[rows]))
            data, before = jax.tree.map(lambda leaf: leaf[rows], (bucket.data, after))  # noqa: B023
            found = _run_batch(
                self.sampler,
                keys,
                data,
                before,
                jnp.asarray(first_sweep),
                num_sweeps,
                self.num_particles,
                self.num_populations,
            )
            # Ctrl-C interrupts this wait, but not a copy to the host.
            moved, info, errors = jax.device_get(jax.block_until_ready(found))
            parts.append((jax.tree.map(lambda a: a[:real], moved), jax.tree.map(lambda a: a[:, :real], info)))  # noqa: B023
            check_carried(self.sampler, bucket.indices[rows], data, moved, np.maximum(errors, info.stale.max(axis=0)))
            if report is not None:
                report(real)
        populations, infos = zip(*parts, strict=True)
        return (
            jax.tree.map(lambda *leaves: np.concatenate(leaves), *populations),
            jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *infos),
        )


def instance_keys(key: PRNGKey, indices: Array) -> Array:
    """The key of each instance, which depends on its index but not on the batch."""
    return jax.vmap(lambda index: fold_in(key, index))(indices)


@eqx.filter_jit
def _run_batch(
    sampler: BuiltSampler,
    keys: Array,
    data: Data,
    after: Population | None,
    first_sweep: Array,
    num_sweeps: int,
    num_particles: int,
    num_populations: int,
) -> tuple[Population, Info, Array]:
    """Run a batch of instances over all devices; also returns the disagreement of carried log-probabilities."""
    arrays, static = eqx.partition(sampler, eqx.is_array)

    def local(
        arrays: Any, keys: Array, data: Data, after: Population | None, first: Array
    ) -> tuple[Population, Info, Array]:
        sampler = eqx.combine(arrays, static)
        if after is None:
            budget: Any = {"num_particles": num_particles, "num_populations": num_populations}
            population, info, _ = run(sampler, keys, data, num_sweeps=num_sweeps, **budget)
        else:
            population, info = extend(sampler, keys, data, after, first_sweep=first, num_sweeps=num_sweeps)
        return population, info, over_populations(carried_errors, sampler, data, population)

    specs = (SHARED, BY_INSTANCE, BY_INSTANCE, BY_INSTANCE, SHARED)
    by_device = over_instances(local, mesh_for(keys.shape[0]), specs, (BY_INSTANCE, BY_SWEEP_AND_INSTANCE, BY_INSTANCE))
    return by_device(arrays, keys, data, after, first_sweep)
