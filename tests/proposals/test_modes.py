"""Conditionals with several modes, far from the prior, or of finite and continuous sites together."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from tests import oracles

import popgibbs as pg

KEY = jax.random.key(0)
SAMPLING = {"num_sweeps": 6, "num_particles": 20, "num_populations": 200}
GRID = np.linspace(-8.0, 8.0, 160_001)
pytestmark = pytest.mark.usefixtures("quick_compilation")


def log_sum(log_p: np.ndarray, places: np.ndarray = GRID) -> float:
    """The logarithm of an integral over a fine grid."""
    return float(np.logaddexp.reduce(log_p) + np.log(places[1] - places[0]))


def assert_evidence(posterior: pg.Posterior, exact: float) -> None:
    assert abs(posterior.log_evidence[0] - exact) < 4 * posterior.log_evidence_error[0] + 1e-3


def test_all_modes_of_one_number_are_reached_in_their_proportions():
    """y ~ Normal(h², 0.1) has a mode on either side of zero; the prior is not centred between them."""

    def square(y):
        h = numpyro.sample("h", dist.Normal(0.3, 1.0))
        numpyro.sample("y", dist.Normal(h**2, 0.1), obs=y)

    y = np.array(2.0, np.float32)
    sampler = pg.APG(square, data={}, example={"y": y})
    assert sampler.blocks[0].kernel.searches
    posterior = sampler.sample(KEY, [{"y": y}], **SAMPLING)
    log_p = stats.norm.logpdf(GRID, 0.3, 1.0) + stats.norm.logpdf(2.0, GRID**2, 0.1)
    positive = np.exp(log_sum(np.where(GRID > 0, log_p, -np.inf)) - log_sum(log_p))
    oracles.assert_mean((np.asarray(posterior[0]["h"]) > 0).mean(axis=1), positive)
    assert_evidence(posterior, log_sum(log_p))


def test_updates_that_are_gaussian_on_either_side_of_a_kink_are_not_taken_for_exact():
    def ridge(y):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(jnp.abs(a + b), 0.2), obs=y)

    y = np.array(1.5, np.float32)
    sampler = pg.APG(ridge, data={}, example={"y": y})
    assert all(block.kernel.searches for block in sampler.blocks)
    posterior = sampler.sample(KEY, [{"y": y}], **SAMPLING)
    # a + b ~ Normal(0, 2)
    log_p = stats.norm.logpdf(GRID, 0.0, np.sqrt(2.0)) + stats.norm.logpdf(1.5, np.abs(GRID), 0.2)
    total = np.asarray(posterior[0]["a"] + posterior[0]["b"])
    oracles.assert_mean((total > 0).mean(axis=1), 0.5)
    oracles.assert_mean((total**2).mean(axis=1), np.sum(GRID**2 * np.exp(log_p)) / np.sum(np.exp(log_p)))
    assert_evidence(posterior, log_sum(log_p))


@pytest.mark.parametrize("num_sites", [1, 2])
def test_data_far_from_the_prior_do_not_stop_the_search(num_sites):
    """A Poisson rate of ten thousand, where its logarithm is standard Normal; a scale ten times its prior's."""

    def rates(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("points", y.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(mu)), obs=y)

    def spread(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("points", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, scale), obs=y)

    if num_sites == 1:
        model, y, places = rates, np.array([10_000, 10_100], np.int32), np.linspace(9.0, 9.4, 40_001)
        log_p = stats.norm.logpdf(places) + stats.poisson.logpmf(y[:, None], np.exp(places)).sum(axis=0)
        exact, name = log_sum(log_p, places), "mu"
    else:
        model, y, places = spread, np.array([50.2, 49.5, 50.8, 51.0, 49.0], np.float32), np.linspace(2.0, 25.0, 4_001)
        # Given the scale, the data are jointly Gaussian.
        covariances = [scale**2 * np.eye(5) + 1.0 for scale in places]
        log_y = [stats.multivariate_normal.logpdf(y, np.zeros(5), covariance) for covariance in covariances]
        log_p = np.array(log_y) + stats.halfnorm.logpdf(places)
        exact, name = log_sum(log_p, places), "scale"
    posterior = pg.APG(model, data={"y": "points"}, example={"y": y}).sample(KEY, [{"y": y}], **SAMPLING)
    oracles.assert_mean(
        np.asarray(posterior[0][name]).mean(axis=1), np.sum(places * np.exp(log_p - exact)) * np.diff(places)[0]
    )
    assert_evidence(posterior, exact)


def curves(x):
    """Points on one of two curves, at an unknown place along it."""
    with numpyro.plate("points", x.shape[0]):
        c = numpyro.sample("c", dist.Categorical(probs=jnp.array([0.3, 0.7])))
        h = numpyro.sample("h", dist.Beta(2.0, 1.0))
        numpyro.sample("x", dist.Normal(jnp.where(c == 1, jnp.cos(6 * h), 3 * h), 0.1), obs=x)


def test_finite_and_continuous_sites_of_a_point_are_drawn_together():
    x = np.array([0.2, 0.9, -0.2, 1.2], np.float32)
    sampler = pg.APG(curves, data={"x": "points"}, example={"x": x})
    assert [block.sites for block in sampler.blocks] == [("c", "h")]
    posterior = sampler.sample(KEY, [{"x": x}], **SAMPLING)
    places = np.linspace(0.0, 1.0, 100_001)[1:-1]
    log_prior = stats.beta.logpdf(places, 2, 1)
    exact = 0.0
    for n, value in enumerate(x):
        parts = [
            log_prior + np.log(share) + stats.norm.logpdf(value, curve, 0.1)
            for share, curve in ((0.3, 3 * places), (0.7, np.cos(6 * places)))
        ]
        both = np.concatenate(parts)
        of_point = log_sum(both, places)
        exact += of_point
        oracles.assert_mean(
            np.asarray(posterior[0]["c"])[..., n].mean(axis=1), np.exp(log_sum(parts[1], places) - of_point)
        )
        mean = np.sum(np.tile(places, 2) * np.exp(both - of_point)) * np.diff(places)[0]
        oracles.assert_mean(np.asarray(posterior[0]["h"])[..., n].mean(axis=1), mean)
    assert_evidence(posterior, exact)


def test_a_switch_and_the_coefficient_that_it_switches_are_drawn_together():
    def regression(x, y):
        switch = numpyro.sample("switch", dist.Bernoulli(0.4))
        slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
        with numpyro.plate("points", y.shape[0]):
            numpyro.sample("y", dist.Normal(switch * slope * x, 0.5), obs=y)

    x = np.array([-1.0, 0.0, 0.5, 1.0], np.float32)
    y = np.array([-0.5, 0.3, 0.1, 0.6], np.float32)
    sampler = pg.APG(regression, data={"x": "points", "y": "points"}, example={"x": x, "y": y})
    assert [block.sites for block in sampler.blocks] == [("switch", "slope")]
    posterior = sampler.sample(KEY, [{"x": x, "y": y}], **SAMPLING)
    off = np.log(0.6) + stats.norm.logpdf(y, 0.0, 0.5).sum()
    on = np.log(0.4) + stats.multivariate_normal.logpdf(y, np.zeros(4), 0.25 * np.eye(4) + 4.0 * np.outer(x, x))
    oracles.assert_mean(np.asarray(posterior[0]["switch"]).mean(axis=1), np.exp(on - np.logaddexp(off, on)))
    assert_evidence(posterior, np.logaddexp(off, on))


def test_supports_may_depend_on_sites_of_other_blocks():
    def bounded(y):
        top = numpyro.sample("top", dist.Exponential(0.5))
        level = numpyro.sample("level", dist.Uniform(0.0, top))
        with numpyro.plate("points", y.shape[0]):
            numpyro.sample("y", dist.Normal(level, 0.5), obs=y)

    y = np.array([0.9, 1.4], np.float32)
    sampler = pg.APG(bounded, data={"y": "points"}, example={"y": y})
    posterior = sampler.sample(KEY, [{"y": y}], **{**SAMPLING, "num_sweeps": 20})
    level = np.linspace(0.0, 8.0, 40_001)[1:]
    # p(level) = ∫ Exponential(top; 1/2) / top over top > level
    top = np.exp(np.linspace(np.log(1e-5), np.log(60.0), 20_001))
    tail = np.append(np.cumsum((0.5 * np.exp(-0.5 * top))[::-1] * np.log(top[1] / top[0]))[::-1], 0.0)[:-1]
    log_p = np.log(np.interp(level, top, tail)) + stats.norm.logpdf(y[:, None], level, 0.5).sum(axis=0)
    exact = log_sum(log_p, level)
    oracles.assert_mean(
        np.asarray(posterior[0]["level"]).mean(axis=1), np.sum(level * np.exp(log_p - exact)) * np.diff(level)[0]
    )
    assert_evidence(posterior, exact)


def test_searches_that_begin_where_the_density_is_zero_find_nothing():
    def cut(y):
        h = numpyro.sample("h", dist.Normal(0.0, 1.0))
        numpyro.factor("inside", jnp.where(jnp.abs(h) < 3.0, 0.0, -jnp.inf))
        numpyro.sample("y", dist.Normal(h, 1.0), obs=y)

    y = np.array(1.0, np.float32)
    blocks = [pg.Block("h", proposal=pg.Laplace(starts=16))]
    sampler = pg.APG(cut, data={}, blocks=blocks, example={"y": y})
    posterior = sampler.sample(KEY, [{"y": y}], **SAMPLING)
    assert posterior.acceptance[0, :, 1:].mean() > 0.85
    log_p = stats.norm.logpdf(GRID) + stats.norm.logpdf(1.0, GRID, 1.0)
    assert_evidence(posterior, log_sum(np.where(np.abs(GRID) < 3.0, log_p, -np.inf)))
