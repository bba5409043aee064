"""A site whose parts are drawn one after another, each given those before it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jax.random import fold_in
from jaxtyping import Array, Float


class Autoregressive(dist.Distribution):
    """q(z_1) q(z_2 | z_1) ... q(z_D | z_1..z_{D-1}) as one distribution over (z_1, ..., z_D).

    Args:
        part: a function from the list of the parts drawn so far to the distribution of the next part. All parts have
            the same shape and support.
        num_parts: D, the length of the leading axis of a draw.

    Examples:
        A random walk of three steps:

        >>> walk = pg.Autoregressive(lambda drawn: dist.Normal(drawn[-1] if drawn else 0.0, 1.0), 3)
        >>> walk.event_shape
        (3,)
        >>> bool(jnp.isclose(walk.log_prob(jnp.zeros(3)), 3 * dist.Normal(0.0, 1.0).log_prob(0.0)))
        True
    """

    def __init__(self, part: Callable[[Sequence[Any]], Any], num_parts: int):
        self._part, self._num_parts = part, num_parts
        self._first = part([])
        super().__init__((), (num_parts, *self._first.batch_shape, *self._first.event_shape))

    @property
    def support(self) -> Any:
        """The support of the first part, for every part."""
        first = self._first
        return dist.constraints.independent(first.support, 1 + len(first.batch_shape))

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Array:
        """One draw, (part, *shape of a part); `sample_shape` must be empty."""
        if sample_shape:
            raise ValueError("Autoregressive draws one sample at a time; use jax.vmap for more")
        drawn: list[Array] = []
        for number in range(self._num_parts):
            drawn.append(self._part(drawn).sample(fold_in(key, number)))
        return jnp.stack(drawn)

    def log_prob(self, value: Any, intermediates: Any = None) -> Float[Array, ""]:
        """Σ_d log q(z_d | z_1..z_{d-1})."""
        del intermediates
        parts = [jnp.sum(self._part(list(value[:number])).log_prob(value[number])) for number in range(self._num_parts)]
        return sum(parts, start=jnp.zeros(()))
