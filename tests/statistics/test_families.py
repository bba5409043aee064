"""Exponential families: natural and canonical parameters agree, and divergences agree with their integrals."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats

from oracles import assert_mean
from popgibbs.statistics import Bernoulli, Beta, Categorical, Dirichlet, FewCategories, Gamma, Normal, NormalGamma

pytestmark = pytest.mark.usefixtures("quick_compilation")

PAIRS = [
    (Normal(jnp.array([0.3, -2.0]), jnp.array([0.7, 3.0])), Normal(jnp.array([1.0, 1.0]), jnp.array([1.5, 2.0]))),
    (Gamma(jnp.array([2.5, 0.8]), jnp.array([1.5, 4.0])), Gamma(jnp.array([1.5, 1.2]), jnp.array([0.5, 3.0]))),
    (Beta(jnp.array([2.5, 0.8]), jnp.array([1.5, 4.0])), Beta(jnp.array([1.5, 1.2]), jnp.array([0.9, 3.0]))),
    (
        NormalGamma(jnp.array([0.3, -2.0]), jnp.array([0.5, 4.0]), jnp.array([2.5, 3.0]), jnp.array([1.5, 0.5])),
        NormalGamma(jnp.array([0.0, -1.0]), jnp.array([0.1, 2.0]), jnp.array([2.0, 2.0]), jnp.array([2.0, 1.0])),
    ),
    (Dirichlet(jnp.array([[0.8, 2.0, 5.0]])), Dirichlet(jnp.array([[1.0, 1.5, 2.0]]))),
    (Categorical(jnp.array([[0.1, -2.0, 1.0]])), Categorical(jnp.array([[1.0, 0.0, -1.0]]))),
    (Bernoulli(jnp.array([0.4, -3.0])), Bernoulli(jnp.array([-1.0, 2.0]))),
]
pairs = pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda member: type(member).__name__)


def float64(member) -> list[np.ndarray]:
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(member)]


@pairs
def test_natural_parameters_convert_back_to_the_member(first, second):
    for member in (first, second):
        again = type(member).from_natural(member.natural())
        for leaf, expected in zip(jax.tree.leaves(again), jax.tree.leaves(member), strict=True):
            np.testing.assert_allclose(leaf, expected, rtol=1e-5)


@pairs
def test_log_densities_of_two_members_differ_by_their_natural_parameters_times_the_statistic(first, second):
    """log p − log q = (λ_p − λ_q)·T(z) + constant, the defining property of an exponential family."""
    statistics, log_density = STATISTICS[type(first)]
    points = [log_density(first, z) - log_density(second, z) for z in POINTS[type(first)]]
    difference = [np.asarray(p) - np.asarray(q) for p, q in zip(first.natural(), second.natural(), strict=True)]

    def inner(z):
        total = 0.0
        for parameter, statistic in zip(difference, statistics(z), strict=True):
            product = parameter * np.asarray(statistic)
            total = total + (product.sum(axis=-1) if type(first) in (Dirichlet, Categorical) else product)
        return total

    constants = np.stack([np.asarray(point) - inner(z) for point, z in zip(points, POINTS[type(first)], strict=True)])
    np.testing.assert_allclose(constants, np.broadcast_to(constants[0], constants.shape), rtol=1e-4, atol=1e-4)


def _log_density(member, z):
    return member.distribution().log_prob(jnp.asarray(z))


def _normal_gamma_log_density(member, z):
    mu, tau = z
    return member.precision().log_prob(tau) + member.mean(jnp.asarray(tau)).log_prob(mu)


STATISTICS = {
    Normal: (lambda z: (z, z**2), _log_density),
    Gamma: (lambda z: (np.log(z), z), _log_density),
    Beta: (lambda z: (np.log(z), np.log1p(-z)), _log_density),
    NormalGamma: (lambda z: (np.log(z[1]), z[1], z[1] * z[0], z[1] * z[0] ** 2), _normal_gamma_log_density),
    Dirichlet: (lambda z: (np.log(z),), _log_density),
    Categorical: (lambda z: (np.eye(3)[z],), _log_density),
    Bernoulli: (lambda z: (z,), _log_density),
}
POINTS = {
    Normal: [0.0, -1.3, 2.2],
    Gamma: [0.2, 1.0, 3.1],
    Beta: [0.1, 0.5, 0.8],
    NormalGamma: [(0.0, 1.0), (-1.3, 0.4), (2.0, 2.5)],
    Dirichlet: [np.array([0.2, 0.3, 0.5]), np.array([0.6, 0.3, 0.1])],
    Categorical: [0, 1, 2],
    Bernoulli: [0, 1],
}


@pairs
def test_a_divergence_is_zero_from_a_member_to_itself_and_otherwise_positive(first, second):
    np.testing.assert_allclose(first.kl(first), 0.0, atol=1e-6)
    assert np.all(np.asarray(first.kl(second)) > 1e-3)
    assert np.all(np.asarray(second.kl(first)) > 1e-3)


SCIPY = {
    Normal: lambda loc, scale: stats.norm(loc, scale),
    Gamma: lambda concentration, rate: stats.gamma(concentration, scale=1 / rate),
    Beta: stats.beta,
}


@pytest.mark.parametrize(("first", "second"), PAIRS[:3], ids=lambda member: type(member).__name__)
def test_one_dimensional_divergences_agree_with_their_integrals(first, second):
    expected = []
    for mine, other in zip(zip(*float64(first), strict=True), zip(*float64(second), strict=True), strict=True):
        p, q = SCIPY[type(first)](*mine), SCIPY[type(second)](*other)
        low, high = p.ppf(1e-12), p.isf(1e-12)
        middle = p.ppf(0.1)
        integral = sum(
            integrate.quad(lambda z, p=p, q=q: p.pdf(z) * (p.logpdf(z) - q.logpdf(z)), *ends, limit=200)[0]
            for ends in ((low, middle), (middle, high))
        )
        expected.append(integral)
    np.testing.assert_allclose(first.kl(second), expected, rtol=1e-3)


def test_the_divergence_of_normal_gammas_agrees_with_monte_carlo():
    first, second = PAIRS[3]
    generator = np.random.default_rng(0)
    loc, count, concentration, rate = float64(first)
    tau = generator.gamma(concentration, 1 / rate, size=(100_000, 2))
    mu = loc + (count * tau) ** -0.5 * generator.standard_normal((100_000, 2))

    def log_density(loc, count, concentration, rate):
        return stats.gamma(concentration, scale=1 / rate).logpdf(tau) + stats.norm(loc, (count * tau) ** -0.5).logpdf(mu)

    assert_mean(log_density(*float64(first)) - log_density(*float64(second)), np.asarray(first.kl(second)))


def test_the_divergence_of_dirichlets_agrees_with_monte_carlo():
    first, second = PAIRS[4]
    (mine,), (other,) = float64(first)[0], float64(second)[0]
    draws = np.random.default_rng(0).dirichlet(mine, size=100_000).T
    draws /= draws.sum(axis=0)
    ratio = stats.dirichlet(mine).logpdf(draws) - stats.dirichlet(other).logpdf(draws)
    assert_mean(ratio[:, None], np.asarray(first.kl(second)))


def test_divergences_of_discrete_families_agree_with_their_sums():
    first, second = PAIRS[5]
    p, q = (np.exp(member) / np.exp(member).sum() for member in (float64(first)[0][0], float64(second)[0][0]))
    np.testing.assert_allclose(first.kl(second), [np.sum(p * np.log(p / q))], rtol=1e-5)
    first, second = PAIRS[6]
    p, q = (1 / (1 + np.exp(-float64(member)[0])) for member in (first, second))
    expected = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    np.testing.assert_allclose(first.kl(second), expected, rtol=1e-5)


def test_a_zero_probability_adds_nothing_in_the_first_member_and_is_infinite_in_the_second():
    without, uniform = Categorical(jnp.array([0.0, 0.0, -jnp.inf])), Categorical(jnp.zeros(3))
    np.testing.assert_allclose(without.kl(uniform), np.log(3 / 2), rtol=1e-6)
    assert uniform.kl(without) == np.inf


LOGITS = jnp.array([[0.5, -1.0, 2.0, -200.0], [-200.0, 0.0, 0.0, 0.0]])  # exp(−200) is zero in float32


def test_categories_score_as_numpyros_categorical():
    values = jnp.array([[0, 1], [1, 2], [2, 3], [3, 0]])
    np.testing.assert_allclose(
        FewCategories(LOGITS).log_prob(values), dist.CategoricalLogits(LOGITS).log_prob(values), rtol=1e-6
    )
    np.testing.assert_allclose(
        FewCategories(LOGITS[0]).log_prob(2), dist.CategoricalLogits(LOGITS[0]).log_prob(2), rtol=1e-6
    )


def test_categories_are_drawn_with_their_probabilities_and_never_with_probability_zero():
    draws = np.asarray(FewCategories(LOGITS).sample(jax.random.key(0), (100_000,)))
    assert draws.shape == (100_000, 2)
    assert draws.dtype == dist.CategoricalLogits(LOGITS).sample(jax.random.key(0)).dtype
    frequencies = draws[:, :, None] == np.arange(4)
    exact = np.asarray(jax.nn.softmax(LOGITS))
    assert_mean(frequencies, exact)
    assert not np.any(frequencies[:, exact == 0])


def test_categories_expand_as_numpyros_categorical():
    expanded, expected = FewCategories(LOGITS[0]).expand([5]), dist.CategoricalLogits(LOGITS[0]).expand([5])
    values = jnp.array([0, 1, 2, 1, 0])
    np.testing.assert_allclose(expanded.log_prob(values), expected.log_prob(values), rtol=1e-6)
    assert expanded.sample(jax.random.key(0)).shape == (5,)
    np.testing.assert_array_equal(expanded.enumerate_support(expand=False), expected.enumerate_support(expand=False))
