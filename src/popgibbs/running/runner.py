"""Running a sampler over all instances of a bucket, in batches and over devices, with keys by index."""

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.random import fold_in
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array

from popgibbs._compiling import Program
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
        # A number of rows that other calls have too.
        size = even_rows(min(self.batch_size, on_grid(len(bucket), per_doubling=4)))
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
        if population is None and num_sweeps:
            _compile_both(sampler, key, indices, data, mesh, self.num_particles, self.num_populations)
        if population is None:
            population, info = _begin(sampler, key, indices, data, mesh, self.num_particles, self.num_populations)
            infos.append(info)
        for begin in range(0, num_sweeps, CHUNK):
            count = min(CHUNK, num_sweeps - begin)
            numbers = _on_all_numbers(first_sweep + begin, count, mesh)
            population, info, found = _sweep_on(sampler, key, indices, data, population, mesh, *numbers)
            infos.append(jax.tree.map(lambda leaf: leaf[:count], jax.device_get(jax.block_until_ready(info))))  # noqa: B023
            errors = np.asarray(found)
        if not num_sweeps:
            errors = np.zeros((*infos[0].log_evidence.shape[1:], len(self.sampler.sites)))
        # Ctrl-C interrupts this wait, but not a copy to the host.
        moved, infos = jax.device_get(jax.block_until_ready((population, infos)))
        return moved, jax.tree.map(lambda *leaves: np.concatenate(leaves), *infos), errors


def _on_all_numbers(first_sweep: int, count: int, mesh: Mesh) -> tuple[Array, Array]:
    return on_all((np.asarray(first_sweep), np.asarray(count)), mesh)


_COMPILED: set[Hashable] = set()  # the kinds of inputs for which `_compile_both` has run


def _compile_both(*inputs: Any) -> None:
    """Compile the first draw and the sweeps at the same time, because XLA compiles one program on about one core.

    Both programs end in the caches of JAX, where the calls find them.
    """
    static, arrays = Program.divided(*inputs)
    kind = (static, *((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arrays)))
    if kind in _COMPILED:
        return
    sampler, key, indices, data, mesh, *_ = inputs
    first = _begin.trace(*inputs)
    population, _ = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, BY_INSTANCE)),
        first.out_info,
    )
    with ThreadPoolExecutor(1) as thread:
        begun = thread.submit(first.lower().compile)
        _sweep_on.trace(sampler, key, indices, data, population, mesh, *_on_all_numbers(1, 1, mesh)).lower().compile()
        begun.result()
    _COMPILED.add(kind)


def instance_keys(key: PRNGKey, indices: Array) -> Array:
    """The key of each instance, which depends on its index but not on the batch."""
    return jax.vmap(lambda index: fold_in(unrolled(key), index))(indices)


@Program
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


@Program
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
