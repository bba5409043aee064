"""Normals by their precision, against NumPy and NumPyro."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from popgibbs.precision import PrecisionNormal, cholesky, solve_lower, solve_upper

GENERATOR = np.random.default_rng(0)
ROOT = GENERATOR.normal(size=(4, 6, 9))
PRECISIONS = jnp.asarray(ROOT @ ROOT.swapaxes(1, 2) + 0.1 * np.eye(6), jnp.float32)
RIGHT = jnp.asarray(GENERATOR.normal(size=(4, 6)), jnp.float32)


def test_factors_and_solutions_are_those_of_lapack():
    factors = jax.vmap(cholesky)(PRECISIONS)
    np.testing.assert_allclose(factors, np.linalg.cholesky(PRECISIONS), rtol=1e-4, atol=1e-5)
    below = jax.vmap(solve_lower)(factors, RIGHT)
    np.testing.assert_allclose(np.einsum("bij,bj->bi", factors, below), RIGHT, rtol=1e-4, atol=1e-5)
    above = jax.vmap(solve_upper)(factors, RIGHT)
    np.testing.assert_allclose(np.einsum("bji,bj->bi", factors, above), RIGHT, rtol=1e-4, atol=1e-5)


def test_the_density_is_that_of_the_multivariate_normal():
    loc, value = RIGHT[0], RIGHT[1]
    ours = PrecisionNormal(loc, cholesky(PRECISIONS[0])).log_prob(value)
    theirs = dist.MultivariateNormal(loc, precision_matrix=PRECISIONS[0]).log_prob(value)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_draws_have_the_mean_and_the_precision():
    normal, num_draws = PrecisionNormal(RIGHT[0], cholesky(PRECISIONS[0])), 20_000
    draws = jax.jit(jax.vmap(normal.sample))(jax.random.split(jax.random.key(0), num_draws))
    # White noise: means within 4/√n of 0, second moments within 4√2/√n of those of independent unit Normals.
    white = np.asarray((draws - RIGHT[0]) @ normal.factor)
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=4 / num_draws**0.5)
    np.testing.assert_allclose(white.T @ white / num_draws, np.eye(6), atol=4 * 2**0.5 / num_draws**0.5)
