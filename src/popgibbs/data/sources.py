"""Sources of training batches: a simulator, or a finite set of instances."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import jax
import numpy as np

from popgibbs._compiling import jit
from popgibbs._random import unrolled, with_key
from popgibbs._reuse import reused
from popgibbs._typing import PRNGKey, Simulator
from popgibbs.data.instances import Axes, Data, complete
from popgibbs.data.padding import Bucket


@runtime_checkable
class Source(Protocol):
    """A source of training batches; the batch of a step depends only on the key and the step."""

    def batch(self, key: PRNGKey, step: int, batch_size: int) -> Data: ...


class Simulated:
    """Fresh instances from a simulator `key -> instance`, drawn on the device."""

    def __init__(self, simulator: Simulator, axes: Axes):
        self._draw = reused(_draw, simulator, axes)

    def batch(self, key: PRNGKey, step: int, batch_size: int) -> Data:
        return self._draw(key, batch_size)


def _draw(simulator: Simulator, axes: Axes) -> Callable[[PRNGKey, int], Data]:
    """The compiled simulator of a batch."""

    def one(key: PRNGKey) -> Data:
        return complete(dict(with_key(simulator, key)), axes)

    def batch(key: PRNGKey, batch_size: int) -> Data:
        return jax.vmap(one)(jax.random.split(unrolled(key), batch_size))

    return jit(batch, static_argnums=1)


class Finite:
    """A finite set of instances in buckets, reshuffled in every epoch.

    A batch comes from one bucket. If a bucket does not fill its last batch, instances from its beginning are repeated.
    """

    def __init__(self, buckets: Sequence[Bucket], seed: int = 0):
        self._buckets = buckets
        self._seed = seed
        self._shuffle: tuple[int, int] | None = None  # the epoch and the batch size of `_batches`
        self._batches: list[tuple[int, np.ndarray]] = []

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
