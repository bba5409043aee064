"""The interface between the mathematics of a training step and the devices.

A step needs one operation: the sum, over the rows of a batch, of a function of shared numbers and of a row. `DeviceSum`
computes it on the devices of this process. It transfers one vector in each direction, because transferring a dozen small
arrays took a fifth of the time of a step.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from popgibbs.data import filled_rows
from popgibbs.running import BY_INSTANCE, SHARED, even_rows, mesh_for, on_all, on_first, over_instances, spread


class DeviceSum:
    """The sum over rows of `of_rows(shared, rows)`, computed by each device for its part of the rows.

    `pack` and `unpack` are for use inside compiled functions, before and after the call.
    """

    def __init__(
        self,
        of_rows: Callable[[Any, Any], Any],
        *,
        num_rows: int,
        shared: Any,
        result: Any,
        microbatch_size: int | None,
    ):
        self.num_rows = even_rows(num_rows)
        self._mesh = mesh_for(self.num_rows)
        self.rows = filled_rows(num_rows, self.num_rows)  # the caller gives padding rows no weight
        _, unravel_shared = ravel_pytree(shared)
        _, self._unravel_result = ravel_pytree(result)

        def local(packed: Array, rows: Any) -> Array:
            shared = unravel_shared(packed)
            return sum_in_parts(lambda part: ravel_pytree(of_rows(shared, part))[0], rows, microbatch_size)[None]

        self.compiled = jax.jit(over_instances(local, self._mesh, (SHARED, BY_INSTANCE), BY_INSTANCE))

    def pack(self, shared: Any) -> Float[Array, " number"]:
        return ravel_pytree(shared)[0]

    def __call__(self, packed: Float[Array, " number"], rows: Any) -> Float[Array, "device result"]:
        rows = jax.tree.map(lambda leaf: leaf if leaf.shape[0] == self.num_rows else leaf[self.rows], rows)
        by_device = self.compiled(on_all(packed, self._mesh), spread(rows, self._mesh))
        return on_first(by_device, self._mesh)

    def unpack(self, by_device: Float[Array, "device result"]) -> Any:
        return self._unravel_result(jnp.sum(by_device, axis=0))

    def on_first(self, tree: Any) -> Any:
        """Arrays on the first device, which holds everything that is not divided over all."""
        return on_first(tree, self._mesh)


def sum_in_parts(of_rows: Callable[[Any], Array], rows: Any, microbatch_size: int | None) -> Array:
    """A sum over rows, computed one after another for equal parts of at most `microbatch_size` rows."""
    count = jax.tree.leaves(rows)[0].shape[0]
    size = max(n for n in range(1, min(microbatch_size or count, count) + 1) if count % n == 0)
    if size == count:
        return of_rows(rows)
    parts = jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), rows)
    like = jax.eval_shape(of_rows, jax.tree.map(lambda leaf: leaf[0], parts))
    total, _ = jax.lax.scan(lambda total, part: (total + of_rows(part), None), jnp.zeros(like.shape, like.dtype), parts)
    return total
