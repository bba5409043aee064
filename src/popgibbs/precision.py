"""Normals given by their precision, for many small matrices at once.

Factors are written out column by column, as operations over the whole batch. LAPACK's, which XLA on CPU calls for each
matrix, block its threads: with several devices and a few hundred matrices they can wait for each other forever.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float


def cholesky(matrix: Float[Array, "row column"]) -> Float[Array, "row column"]:
    """The lower triangular L with L Lᵀ = matrix."""
    columns: list[Array] = []
    for j in range(matrix.shape[0]):
        left = matrix[:, j] - sum(column * column[j] for column in columns)
        columns.append(jnp.where(np.arange(matrix.shape[0]) >= j, left * jax.lax.rsqrt(left[j]), 0.0))
    return jnp.stack(columns, axis=1)


def solve_lower(factor: Float[Array, "row row"], right: Float[Array, " row"]) -> Float[Array, " row"]:
    """x with L x = right."""
    values, left = [], right
    for j in range(right.shape[0]):
        values.append(left[j] / factor[j, j])
        left = left - factor[:, j] * values[-1]
    return jnp.stack(values)


def solve_upper(factor: Float[Array, "row row"], right: Float[Array, " row"]) -> Float[Array, " row"]:
    """x with Lᵀ x = right."""
    values, left = [], right
    for j in reversed(range(right.shape[0])):
        values.append(left[j] / factor[j, j])
        left = left - factor[j] * values[-1]
    return jnp.stack(values[::-1])


class PrecisionNormal(dist.Distribution):
    """Normal(loc, (L Lᵀ)⁻¹) by the Cholesky factor L of its precision."""

    def __init__(self, loc: Float[Array, " axis"], factor: Float[Array, "axis axis"]):
        self.loc, self.factor = loc, factor
        super().__init__((), loc.shape)

    @property
    def support(self) -> Any:
        return dist.constraints.real_vector

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Array:
        if sample_shape:
            raise ValueError("PrecisionNormal draws one sample at a time; use jax.vmap for more")
        return self.loc + solve_upper(self.factor, jax.random.normal(key, self.loc.shape, self.loc.dtype))

    def log_prob(self, value: Any, intermediates: Any = None) -> Float[Array, ""]:
        del intermediates
        white = self.factor.T @ (value - self.loc)
        log_volume = jnp.sum(jnp.log(jnp.diagonal(self.factor))) - 0.5 * white.size * jnp.log(2 * jnp.pi)
        return log_volume - 0.5 * jnp.sum(white**2)
