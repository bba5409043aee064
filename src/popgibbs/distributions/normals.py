"""Multivariate Normals, and the factorisations of small matrices that they need, without LAPACK.

XLA on CPU spreads a batch of matrices over its threads for LAPACK, and can then wait for them forever
(`docs/explanation/lapack.md`). Here factors are computed column by column, as operations on all matrices of the batch at
once: no thread waits for another, and for many small matrices it is faster. All functions take batches of matrices.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions.util import lazy_property, validate_sample

WRITTEN_OUT = 10  # columns that are unrolled; beyond it a loop, slower to run but with bounded compile time


@partial(jnp.vectorize, signature="(n,n)->(n,n)")
def cholesky(matrix: Float[Array, "row row"]) -> Float[Array, "row row"]:
    """The Cholesky factor: the lower triangular L with L Lᵀ = matrix.

    Args:
        matrix: positive definite, (*batch, row, row); only the lower triangle is read.

    Returns:
        L, (*batch, row, row). As in JAX, a matrix that is not positive definite gives NaN rather than an error.

    Examples:
        >>> pg.distributions.cholesky(jnp.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
        [[2.0, 0.0], [1.0, 2.0]]
    """
    size = matrix.shape[0]

    def finished(left: Array, j: Any) -> Array:
        return jnp.where(np.arange(size) >= j, left * jax.lax.rsqrt(left[j]), 0.0)

    if size <= WRITTEN_OUT:
        columns: list[Array] = []
        for j in range(size):
            columns.append(finished(matrix[:, j] - sum(column * column[j] for column in columns), j))
        return jnp.stack(columns, axis=1)

    def add(factor: Array, number_and_column: tuple[Array, Array]) -> tuple[Array, None]:
        j, column = number_and_column
        return factor.at[:, j].set(finished(column - factor @ factor[j], j)), None

    factor, _ = jax.lax.scan(add, jnp.zeros_like(matrix), (jnp.arange(size), matrix.T))
    return factor


@partial(jnp.vectorize, signature="(n,n)->(n,n)", excluded={1})
def floored_cholesky(matrix: Float[Array, "row row"], floor: float) -> Float[Array, "row row"]:
    """The Cholesky factor of the nearest matrix of this form whose pivots, the squares of its diagonal, reach a floor.

    For a curvature that may not be positive definite. Where all pivots exceed the floor, this is `cholesky`.
    """
    size = matrix.shape[0]

    def add(factor: Array, number_and_column: tuple[Array, Array]) -> tuple[Array, None]:
        j, column = number_and_column
        left = column - factor @ factor[j]
        pivot = left[j]
        scaled = left * jax.lax.rsqrt(jnp.maximum(pivot, floor))
        # Below a pivot that was raised, the column would be arbitrarily large for nothing: these directions stay apart.
        kept = jnp.where(np.arange(size) == j, jnp.sqrt(jnp.maximum(pivot, floor)), jnp.where(pivot > floor, scaled, 0.0))
        return factor.at[:, j].set(jnp.where(np.arange(size) >= j, kept, 0.0)), None

    factor, _ = jax.lax.scan(add, jnp.zeros_like(matrix), (jnp.arange(size), matrix.T))
    return factor


def solve_triangular(factor: Any, right: Any, *, transposed: bool = False) -> Float[Array, "*batch row"]:
    """Solve L x = right, or Lᵀ x = right, for a lower triangular L.

    Args:
        factor: L, (*batch, row, row).
        right: a vector, (*batch, row); batches are broadcast.
        transposed: solve with Lᵀ.

    Returns:
        x, (*batch, row).

    Examples:
        >>> factor = jnp.array([[2.0, 0.0], [1.0, 2.0]])
        >>> pg.distributions.solve_triangular(factor, jnp.array([2.0, 5.0])).tolist()
        [1.0, 2.0]
    """
    solve = jnp.vectorize(partial(_substitute, transposed=transposed), signature="(n,n),(n)->(n)")
    return solve(factor, right)


def _substitute(
    factor: Float[Array, "row row"], right: Float[Array, " row"], *, transposed: bool
) -> Float[Array, " row"]:
    """Solve for one unknown after another, from the last one if the factor is transposed."""

    def step(left: Array, j: Any) -> tuple[Array, Array]:
        value = left[j] / factor[j, j]
        return left - (factor[j] if transposed else factor[:, j]) * value, value

    size = right.shape[0]
    if size > WRITTEN_OUT:
        return jax.lax.scan(step, right, np.arange(size), reverse=transposed)[1]
    values, left = [], right
    for j in range(size)[:: -1 if transposed else 1]:
        left, value = step(left, j)
        values.append(value)
    return jnp.stack(values[::-1] if transposed else values)


def solve_psd(matrix: Any, right: Any) -> Float[Array, "*batch row"]:
    """Solve matrix x = right, for a positive definite matrix.

    Args:
        matrix: (*batch, row, row).
        right: a vector, (*batch, row); batches are broadcast.

    Returns:
        x, (*batch, row).

    Examples:
        >>> pg.distributions.solve_psd(jnp.array([[4.0, 2.0], [2.0, 5.0]]), jnp.array([8.0, 12.0])).tolist()
        [1.0, 2.0]
    """
    factor = cholesky(matrix)
    return solve_triangular(factor, solve_triangular(factor, right), transposed=True)


def inverse(matrix: Any) -> Float[Array, "*batch row row"]:
    """The inverse of a positive definite matrix.

    Args:
        matrix: (*batch, row, row).

    Returns:
        (*batch, row, row).

    Examples:
        >>> pg.distributions.inverse(jnp.diag(jnp.array([1.0, 4.0]))).tolist()
        [[1.0, 0.0], [0.0, 0.25]]
    """
    root = _inverse_factor(cholesky(matrix))
    return jnp.swapaxes(root, -1, -2) @ root


def log_det(matrix: Any) -> Float[Array, "*batch"]:
    """The logarithm of the determinant of a positive definite matrix.

    Args:
        matrix: (*batch, row, row).

    Returns:
        (*batch,).

    Examples:
        >>> float(pg.distributions.log_det(jnp.eye(3)))
        0.0
    """
    return 2 * _log_diagonal(cholesky(matrix))


@partial(jnp.vectorize, signature="(n,n)->(n,n)")
def _inverse_factor(factor: Float[Array, "row row"]) -> Float[Array, "row row"]:
    """L⁻¹, lower triangular like L."""
    identity = jnp.eye(factor.shape[0], dtype=factor.dtype)
    return jax.vmap(solve_triangular, in_axes=(None, 1), out_axes=1)(factor, identity)


def _log_diagonal(factor: Any) -> Float[Array, "*batch"]:
    """log |L|."""
    return jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)


class MultivariateNormal(dist.MultivariateNormal):
    """NumPyro's `MultivariateNormal`, with the same arguments, batches and draws, without LAPACK.

    Pass exactly one of the three matrices.

    Args:
        loc: the mean, (*batch, axis).
        covariance_matrix: (*batch, axis, axis).
        precision_matrix: the inverse of the covariance, (*batch, axis, axis).
        scale_tril: the lower Cholesky factor of the covariance, (*batch, axis, axis).
        validate_args: as in NumPyro, whether to check the arguments and the values that are scored.

    Raises:
        ValueError: if none or more than one of the matrices is given.

    Examples:
        >>> normal = pg.distributions.MultivariateNormal(jnp.zeros(2), covariance_matrix=4 * jnp.eye(2))
        >>> normal.sample(key, (5,)).shape
        (5, 2)
        >>> normal.precision_matrix.tolist()
        [[0.25, 0.0], [0.0, 0.25]]
    """

    def __init__(
        self,
        loc: Any = 0.0,
        covariance_matrix: Any = None,
        precision_matrix: Any = None,
        scale_tril: Any = None,
        *,
        validate_args: bool | None = None,
    ):
        if sum(matrix is not None for matrix in (covariance_matrix, precision_matrix, scale_tril)) != 1:
            raise ValueError("MultivariateNormal needs one of covariance_matrix, precision_matrix and scale_tril")
        if covariance_matrix is not None:
            scale_tril = cholesky(covariance_matrix)
        elif precision_matrix is not None:
            # With both axes reversed, the inverse of the factor is lower triangular in the order of the axes.
            reverse = cholesky(jnp.asarray(precision_matrix)[..., ::-1, ::-1])[..., ::-1, ::-1]
            scale_tril = _inverse_factor(jnp.swapaxes(reverse, -1, -2))
        super().__init__(loc, scale_tril=jnp.asarray(scale_tril), validate_args=validate_args)

    @validate_sample
    def log_prob(self, value: Any) -> Float[Array, "*batch"]:
        """The log-density of value, (*batch, axis)."""
        white = solve_triangular(self.scale_tril, value - self.loc)
        log_volume = _log_diagonal(self.scale_tril) + 0.5 * white.shape[-1] * jnp.log(2 * jnp.pi)
        return -0.5 * jnp.sum(white**2, axis=-1) - log_volume

    @lazy_property
    def precision_matrix(self) -> Float[Array, "*batch axis axis"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inverse of the covariance, (*batch, axis, axis)."""
        root = _inverse_factor(self.scale_tril)
        return jnp.swapaxes(root, -1, -2) @ root


class PrecisionNormal(dist.Distribution):
    """Normal(loc, (L Lᵀ)⁻¹) for one vector, given the Cholesky factor L of its precision; no matrix is inverted.

    Args:
        loc: the mean, (axis,).
        factor: L, lower triangular, (axis, axis).

    Examples:
        >>> precision = jnp.array([[4.0, 2.0], [2.0, 5.0]])
        >>> normal = pg.distributions.PrecisionNormal(jnp.zeros(2), pg.distributions.cholesky(precision))
        >>> normal.sample(key).shape, normal.log_prob(jnp.zeros(2)).shape
        ((2,), ())
    """

    def __init__(self, loc: Float[Array, " axis"], factor: Float[Array, "axis axis"]):
        self.loc, self.factor = loc, factor
        super().__init__((), loc.shape)

    @property
    def support(self) -> Any:
        """All real vectors."""
        return dist.constraints.real_vector

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Array:
        """One draw, (axis,); `sample_shape` must be empty."""
        if sample_shape:
            raise ValueError("PrecisionNormal draws one sample at a time; use jax.vmap for more")
        noise = jax.random.normal(key, self.loc.shape, self.loc.dtype)
        return self.loc + solve_triangular(self.factor, noise, transposed=True)

    def log_prob(self, value: Any, intermediates: Any = None) -> Float[Array, ""]:
        """The log-density of value, (axis,)."""
        del intermediates
        white = self.factor.T @ (value - self.loc)
        log_volume = jnp.sum(jnp.log(jnp.diagonal(self.factor))) - 0.5 * white.size * jnp.log(2 * jnp.pi)
        return log_volume - 0.5 * jnp.sum(white**2)
