"""Beta variates and densities: the law, the density at large concentrations in float32, and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import special, stats

from popgibbs.distributions import ManyBeta, log_gamma_variates, stirling_rest

pytestmark = pytest.mark.usefixtures("quick_compilation")

PAIRS = [(0.1, 0.2), (0.7, 3.0), (1.0, 1.0), (4.0, 4.0), (50.0, 2000.0), (9000.0, 12000.0)]


@pytest.mark.parametrize("concentration", [0.3, 1.0, 2.0, 30.0])
def test_gamma_variates_follow_their_law(concentration):
    draws = log_gamma_variates(jax.random.key(1), jnp.full(20_000, concentration))
    assert stats.kstest(np.exp(np.asarray(draws, float)), stats.gamma(concentration).cdf).pvalue > 1e-3


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_beta_variates_follow_their_law(a, b):
    draws = np.asarray(ManyBeta(a, b).sample(jax.random.key(2), (20_000,)), float)
    assert stats.kstest(draws, stats.beta(a, b).cdf).pvalue > 1e-3


def test_every_element_has_its_own_concentration_and_every_key_its_own_draws():
    a, b = jnp.array([0.5, 3.0, 800.0])[:, None], jnp.array([1.0, 20.0])
    keys = jax.random.split(jax.random.key(3), 4000)
    draws = jax.vmap(lambda key: ManyBeta(a, b).sample(key))(keys)
    assert draws.shape == (4000, 3, 2)
    error = np.sqrt(dist.Beta(a, b).variance / 4000)
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - dist.Beta(a, b).mean), 4 * error)
    np.testing.assert_allclose(draws[7], ManyBeta(a, b).sample(keys[7]), rtol=1e-5)


def test_draws_do_not_depend_on_the_elements_that_follow():
    few, more = (ManyBeta(0.7, 3.0).expand([n, 2]).sample(jax.random.key(4)) for n in (5, 9))
    np.testing.assert_allclose(few, more[:5], rtol=1e-6)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_the_log_density_keeps_its_digits_at_large_concentrations(a, b):
    """The error is that of rounding x itself, one part in 2²⁴, times the concentration."""
    draws = np.random.default_rng(0).beta(a, b, 500).astype(np.float32)
    x = np.clip(draws, np.finfo(np.float32).tiny, 1 - np.finfo(np.float32).epsneg)
    exact = stats.beta(a, b).logpdf(x.astype(float))
    np.testing.assert_allclose(ManyBeta(a, b).log_prob(x), exact, rtol=2e-6, atol=2e-6 + 1.5e-7 * (a + b))


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_the_gradient_of_the_log_density_in_the_concentrations(a, b):
    x = 0.3 if a < 100 else a / (a + b)
    found = jax.grad(lambda pair: ManyBeta(*pair).log_prob(x))((a, b))
    total = special.psi(a + b)
    exact = (np.log(x) - special.psi(a) + total, np.log1p(-x) - special.psi(b) + total)
    np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-6)


def test_the_error_of_stirlings_formula_and_its_derivative():
    x = np.exp(np.linspace(-6, 9, 200))
    rest = special.gammaln(x) - ((x - 0.5) * np.log(x) - x + 0.5 * np.log(2 * np.pi))
    np.testing.assert_allclose(stirling_rest(jnp.asarray(x, jnp.float32)), rest, rtol=5e-5)
    slope = jax.vmap(jax.grad(stirling_rest))(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(slope, special.psi(x) - np.log(x) + 0.5 / x, rtol=5e-5)


def test_values_at_the_edges_have_finite_density_and_gradient():
    for x in (0.0, 1.0):
        value, slope = jax.value_and_grad(lambda a, x=x: ManyBeta(a, 2.0).log_prob(x))(3.0)
        assert np.isfinite(value)
        assert np.isfinite(slope)
    np.testing.assert_allclose(ManyBeta(1.0, 1.0).log_prob(jnp.array([0.0, 1.0])), 0.0, atol=1e-4)
