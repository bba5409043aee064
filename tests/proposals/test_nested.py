"""Proposals for sites and the sites below them, which follow funnels; first draws of hierarchies."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats
from scipy.special import logsumexp
from tests import oracles

import popgibbs as pg

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
Y = np.array([2.1, -0.3, 0.4, -1.8, 0.2, 3.0], np.float32)


def groups(y):
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    with numpyro.plate("groups", y.shape[0]):
        effect = numpyro.sample("effect", dist.Normal(0.0, scale))
        numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)


def evidence_and_scale(y: np.ndarray) -> tuple[float, float]:
    """The log evidence and the posterior mean of log scale, on a grid; effects are integrated in closed form."""
    u, width = np.linspace(-15.0, 15.0, 100_001, retstep=True)
    scale = np.exp(u)
    log_p = stats.halfcauchy.logpdf(scale) + u
    log_p += stats.norm.logpdf(np.asarray(y, float)[:, None], 0.0, np.hypot(1.0, scale)).sum(axis=0)
    log_evidence = logsumexp(log_p) + np.log(width)
    return float(log_evidence), float(width * np.sum(u * np.exp(log_p - log_evidence)))


def built(y: np.ndarray, **options) -> pg.APG:
    return pg.APG(groups, data={"y": "groups"}, example={"y": y}, **options)


def test_a_scale_and_the_sites_that_it_scales_in_one_block():
    """The proposal follows the funnel, and its density is that of its draws."""
    sampler = built(Y, blocks=[pg.Block("scale", "effect")])
    posterior = sampler.sample(KEY, [Y], num_sweeps=3, num_particles=20, num_populations=100)
    log_evidence, mean = evidence_and_scale(Y)
    oracles.assert_mean(np.exp(posterior.log_evidence_by_sweep[0, :, -1] - log_evidence), 1.0)
    assert posterior.acceptance[..., 1:, :].mean() > 0.8  # 0.05 with one Gaussian for both
    populations = np.sum(posterior.weights[0] * np.log(posterior[0]["scale"]), axis=-1)
    oracles.assert_mean(populations / posterior.weights[0].sum(axis=-1), mean)


def test_hierarchies_draw_first_by_a_nested_laplace_approximation():
    """Its evidence is right from few particles, also where data lie far beyond the prior."""
    sampler = built(Y)
    assert "Laplace for scale" in sampler.describe().first_draw
    far = 40 * Y
    posterior = sampler.sample(KEY, [Y, far], num_sweeps=0, num_particles=20, num_populations=20)
    for instance, y in enumerate((Y, far)):
        exact, _ = evidence_and_scale(y)
        oracles.assert_mean(np.exp(posterior.log_evidence_by_sweep[instance, :, 0] - exact), 1.0)
        assert posterior.log_evidence_error[instance] < 0.1


def test_padded_groups_change_nothing():
    sampler = built(Y)
    budget = {"num_sweeps": 0, "num_particles": 10}
    together = sampler.sample(KEY, [Y[:4], Y], **budget)
    alone = sampler.sample(KEY, [Y[:4]], **budget)
    np.testing.assert_allclose(together.log_evidence[0], alone.log_evidence[0], atol=2e-3)


def flat(y):
    """Two sites without a plate, one of them on the positive reals."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("points", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def test_sites_without_plates_draw_first_together():
    sampler = pg.APG(flat, data={"y": "points"}, example={"y": Y})
    posterior = sampler.sample(KEY, [Y], num_sweeps=0, num_particles=20, num_populations=50)

    def density(mean: float, scale: float) -> float:
        prior = stats.norm.pdf(mean, 0, 3) * stats.halfnorm.pdf(scale, scale=2)
        return prior * np.prod(stats.norm.pdf(Y, mean, scale))

    exact = np.log(integrate.dblquad(density, 0.01, 15, -12, 12)[0])
    oracles.assert_mean(np.exp(posterior.log_evidence_by_sweep[0, :, 0] - exact), 1.0)
    assert posterior.ess[..., 0, 0].mean() > 12


def test_a_funnel_that_is_not_a_location_and_a_scale_is_not_drawn_as_one_gaussian():
    """The size of a site is in its covariance matrix."""

    def curve(y):
        size = numpyro.sample("size", dist.HalfNormal(1.0))
        covariance = size**2 * (0.5 * jnp.eye(3) + 0.5)
        f = numpyro.sample("f", pg.distributions.MultivariateNormal(jnp.zeros(3), covariance))
        numpyro.sample("y", dist.Poisson(jnp.exp(f)).to_event(1), obs=y)

    sampler = pg.APG(curve, data={}, example={"y": np.array([1, 0, 2])})
    assert "annealed" in sampler.describe().first_draw
