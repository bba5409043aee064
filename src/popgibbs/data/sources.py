"""Sources of training batches: a simulator, or a finite set of instances."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import jax
import numpy as np

from popgibbs._typing import PRNGKey, Simulator, Values
from popgibbs.data.instances import Axes, Data, complete
from popgibbs.data.padding import into_buckets


@runtime_checkable
class Source(Protocol):
    """A source of training batches; the batch of a step depends only on the key and the step."""

    @property
    def is_padded(self) -> bool: ...

    def batch(self, key: PRNGKey, step: int, batch_size: int) -> Data: ...


class Simulated:
    """Fresh instances from a simulator `key -> instance`, drawn on the device."""

    is_padded = False  # all instances have the same size

    def __init__(self, simulator: Simulator, axes: Axes):
        self._axes = axes
        self._draw = jax.jit(jax.vmap(lambda key: complete(dict(simulator(key)), axes)))

    def batch(self, key: PRNGKey, step: int, batch_size: int) -> Data:
        return self._draw(jax.random.split(key, batch_size))


class Finite:
    """A finite set of instances, reshuffled in every epoch.

    A batch comes from one bucket. If a bucket does not fill its last batch, instances from its beginning are repeated.
    """

    def __init__(self, instances: Sequence[Values], axes: Axes, seed: int = 0):
        self._buckets = into_buckets(instances, axes)
        self._seed = seed
        self._shuffle: tuple[int, int] | None = None  # the epoch and the batch size of `_batches`
        self._batches: list[tuple[int, np.ndarray]] = []

    @property
    def is_padded(self) -> bool:
        return any(bucket.is_padded for bucket in self._buckets)

    def batch(self, key: PRNGKey, step: int, batch_size: int) -> Data:
        del key
        per_epoch = sum(-(-len(bucket) // batch_size) for bucket in self._buckets)
        epoch, place = divmod(step, per_epoch)
        if self._shuffle != (epoch, batch_size):
            self._shuffle, self._batches = (epoch, batch_size), self._shuffled(epoch, batch_size)
        bucket, rows = self._batches[place]
        return jax.tree.map(lambda leaf: leaf[rows], self._buckets[bucket].data)

    def _shuffled(self, epoch: int, batch_size: int) -> list[tuple[int, np.ndarray]]:
        generator = np.random.default_rng((self._seed, epoch))
        batches = []
        for index, bucket in enumerate(self._buckets):
            order = generator.permutation(len(bucket))
            count = -(-len(bucket) // batch_size)
            batches += [(index, rows) for rows in np.resize(order, (count, batch_size))]
        return [batches[i] for i in generator.permutation(len(batches))]
