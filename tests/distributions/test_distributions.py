"""Normals and factorisations without LAPACK, against NumPy and SciPy in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import linalg, stats

import popgibbs as pg
from popgibbs.distributions import PrecisionNormal, cholesky, inverse, log_det, solve_psd, solve_triangular
from popgibbs.distributions import normals as distributions

pytestmark = pytest.mark.usefixtures("quick_compilation")

WRITTEN_OUT, AS_A_LOOP = 4, distributions.WRITTEN_OUT + 2
CLOSE = {"rtol": 2e-3, "atol": 2e-4}  # single precision, and condition numbers of about a hundred


def problem(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A batch of roots B of positive definite matrices, (3, size, size), of means and of values, in double precision."""
    generator = np.random.default_rng(size)
    roots = generator.normal(size=(3, size, size)) / size**0.5
    return roots, *generator.normal(size=(2, 3, size))


def definite(roots, xp=np):
    return roots @ xp.swapaxes(roots, -1, -2) + xp.eye(roots.shape[-1]) / 4


def given_by(parameter: str, matrices: np.ndarray) -> np.ndarray:
    """The covariances of a Normal whose parameter is these matrices, or their Cholesky factors."""
    return np.linalg.inv(matrices) if parameter == "precision_matrix" else matrices


def ours(parameter: str, loc, matrices) -> dist.Distribution:
    parameters = {parameter: cholesky(matrices) if parameter == "scale_tril" else matrices}
    return pg.distributions.MultivariateNormal(loc, **parameters)


PARAMETERS = pytest.mark.parametrize("parameter", ["covariance_matrix", "precision_matrix", "scale_tril"])
SIZES = pytest.mark.parametrize("size", [1, WRITTEN_OUT, AS_A_LOOP])


@SIZES
def test_factors_and_solutions_are_those_of_lapack(size):
    roots, right, _ = problem(size)
    matrices = definite(roots)
    factors = np.linalg.cholesky(matrices)

    @jax.jit
    def ours(matrices, right):
        factor = cholesky(matrices)
        solved = [solve_triangular(factor, right, transposed=transposed) for transposed in (False, True)]
        return factor, solved, inverse(matrices), log_det(matrices), solve_psd(matrices, right)

    factor, solved, inverted, volume, solved_psd = ours(matrices, right)
    np.testing.assert_allclose(factor, factors, **CLOSE)
    for transposed, solution in enumerate(solved):
        exact = [linalg.solve_triangular(f, r, trans=transposed, lower=True) for f, r in zip(factors, right, strict=True)]
        np.testing.assert_allclose(solution, exact, **CLOSE)
    np.testing.assert_allclose(inverted, np.linalg.inv(matrices), **CLOSE)
    np.testing.assert_allclose(volume, np.linalg.slogdet(matrices)[1], **CLOSE)
    np.testing.assert_allclose(solved_psd, np.linalg.solve(matrices, right[..., None])[..., 0], **CLOSE)


@pytest.mark.parametrize("size", [WRITTEN_OUT, AS_A_LOOP])
def test_a_matrix_that_is_not_positive_definite_gives_nan(size):
    matrices = np.stack([np.eye(size), np.eye(size)])
    matrices[1, -1, -1] = -1

    @jax.jit
    def ours(matrices):
        normal = pg.distributions.MultivariateNormal(jnp.zeros(size), covariance_matrix=matrices)
        return normal.log_prob(jnp.zeros(size)), log_det(matrices)

    for numbers in ours(matrices):
        np.testing.assert_array_equal(jnp.isnan(numbers), [False, True])


@SIZES
@PARAMETERS
def test_densities_and_moments_are_those_of_the_multivariate_normal(parameter, size):
    roots, loc, value = problem(size)
    matrices = definite(roots)
    covariances = given_by(parameter, matrices)
    values = np.stack([value, -value])

    @jax.jit
    def log_probs_and_moments(loc, matrices, values):
        normal = ours(parameter, loc, matrices)
        assert (normal.batch_shape, normal.event_shape, normal.event_dim) == ((3,), (size,), 1)
        shared = pg.distributions.MultivariateNormal(loc[0], scale_tril=normal.scale_tril[0]).expand([2])
        log_probs = normal.log_prob(values), shared.log_prob(values[:, 0])
        return *log_probs, normal.mean, normal.variance, normal.precision_matrix

    log_probs, of_first, mean, variance, precision = log_probs_and_moments(loc, matrices, values)
    normals = [stats.multivariate_normal(*parameters) for parameters in zip(loc, covariances, strict=True)]
    exact = np.stack([normal.logpdf(values[:, i]) for i, normal in enumerate(normals)], axis=1)
    np.testing.assert_allclose(log_probs, exact, **CLOSE)
    np.testing.assert_allclose(of_first, exact[:, 0], **CLOSE)
    np.testing.assert_allclose(mean, loc, **CLOSE)
    np.testing.assert_allclose(variance, np.diagonal(covariances, axis1=1, axis2=2), **CLOSE)
    np.testing.assert_allclose(precision, np.linalg.inv(covariances), **CLOSE)


@pytest.mark.parametrize("size", [WRITTEN_OUT, AS_A_LOOP])
@PARAMETERS
def test_gradients_are_the_exact_ones(parameter, size):
    roots, loc, value = problem(size)
    matrices = definite(roots)
    covariances = given_by(parameter, matrices)
    whitened = np.linalg.solve(covariances, (value - loc)[..., None])  # ∂ log p / ∂ loc
    # ∂ log p / ∂Σ = ½ (Σ⁻¹ r rᵀ Σ⁻¹ − Σ⁻¹), and dP = −P dΣ P; the matrix is B Bᵀ + I/4.
    by_matrix = (whitened @ whitened.swapaxes(1, 2) - np.linalg.inv(covariances)) / 2
    if parameter == "precision_matrix":
        by_matrix = -covariances @ by_matrix @ covariances

    def log_prob(loc, roots):
        return jnp.sum(ours(parameter, loc, definite(roots, jnp)).log_prob(jnp.asarray(value, jnp.float32)))

    by_loc, by_root = jax.jit(jax.grad(log_prob, argnums=(0, 1)))(*(jnp.asarray(a, jnp.float32) for a in (loc, roots)))
    np.testing.assert_allclose(by_loc, whitened[..., 0], rtol=5e-3, atol=2e-3)
    np.testing.assert_allclose(by_root, 2 * by_matrix @ roots, rtol=5e-3, atol=2e-3)


def test_draws_are_those_of_numpyro():
    roots, loc, _ = problem(WRITTEN_OUT)
    covariances = jnp.asarray(definite(roots), jnp.float32)
    key = jax.random.key(0)
    ours, theirs = (
        jax.jit(lambda loc, covariances, normal=normal: normal(loc, covariances).sample(key, (5,)))(loc, covariances)
        for normal in (pg.distributions.MultivariateNormal, dist.MultivariateNormal)
    )
    np.testing.assert_allclose(ours, theirs, **CLOSE)


def test_it_is_vectorised_like_numpyros():
    roots, loc, value = problem(WRITTEN_OUT)

    @jax.jit
    def ours(loc, covariances, value):
        normals = jax.vmap(pg.distributions.MultivariateNormal)(loc, covariances)
        one_by_one = jax.vmap(lambda normal, value: normal.log_prob(value))(normals, value)
        return one_by_one, pg.distributions.MultivariateNormal(loc, covariances).log_prob(value)

    one_by_one, together = ours(loc, definite(roots), value)
    np.testing.assert_allclose(one_by_one, together, **CLOSE)


@pytest.mark.parametrize("parameters", [{}, {"covariance_matrix": np.eye(2), "scale_tril": np.eye(2)}])
def test_exactly_one_matrix_is_needed(parameters):
    with pytest.raises(ValueError, match="needs one of covariance_matrix, precision_matrix and scale_tril"):
        pg.distributions.MultivariateNormal(0.0, **parameters)


def test_draws_and_densities_by_the_factor_of_the_precision():
    roots, loc, value = (jnp.asarray(array[0], jnp.float32) for array in problem(WRITTEN_OUT))
    precision, num_draws = definite(roots, jnp), 20_000
    normal = PrecisionNormal(loc, cholesky(precision))
    exact = stats.multivariate_normal(loc, np.linalg.inv(np.asarray(precision, np.float64))).logpdf(value)
    np.testing.assert_allclose(normal.log_prob(value), exact, **CLOSE)
    draws = jax.jit(jax.vmap(normal.sample))(jax.random.split(jax.random.key(0), num_draws))
    # White noise: means within 4/√n of 0, second moments within 4√2/√n of those of independent unit Normals.
    white = np.asarray((draws - loc) @ normal.factor)
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=4 / num_draws**0.5)
    np.testing.assert_allclose(white.T @ white / num_draws, np.eye(WRITTEN_OUT), atol=4 * 2**0.5 / num_draws**0.5)
