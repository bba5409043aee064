"""Exact conditionals that are read off the gradients of the model's factors."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import betaln, gammaln
from tests import oracles
from tests.models import conditional_at

import popgibbs as pg
from popgibbs.data import complete

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)


def conjugate(y, w):
    """One site of each family, and one scale that belongs to none."""
    rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
    share = numpyro.sample("share", dist.Beta(0.5, 2.0))
    chances = numpyro.sample("chances", dist.Dirichlet(jnp.array([0.5, 1.0, 2.0])))
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("points", y.shape[0]):
        numpyro.sample("count", dist.Poisson(rate), obs=y[:, 0])
        numpyro.sample("heads", dist.Binomial(10, share), obs=y[:, 1])
        numpyro.sample("kind", dist.Categorical(chances), obs=y[:, 2])
        numpyro.sample("w", dist.Normal(2.0 * mean + 1.0, scale), obs=w)


AXES = {"y": ("points", None), "w": "points"}
Y = np.array([[2, 7, 0], [0, 9, 2], [3, 6, 2], [1, 8, 1]], np.int32)
W = np.array([0.4, 2.2, 1.0, -0.3], np.float32)


@pytest.fixture(scope="module")
def sampler():
    return pg.APG(conjugate, data=AXES, example={"y": Y, "w": W})


def test_conjugate_factors_are_found_however_they_are_written(sampler):
    drawn = {row.name: row.proposal for row in sampler.describe().blocks}
    assert [drawn[name] for name in ("rate", "share", "chances", "mean")] == [
        "exact, Gamma",
        "exact, Beta",
        "exact, Dirichlet",
        "exact, Normal",
    ]
    assert drawn["scale"].startswith("Laplace")


def test_an_exact_update_is_the_conditional_itself(sampler):
    """log p − log q is the same number at every value, so every proposal is accepted."""
    data = complete({"y": Y, "w": W}, {"y": ("points", None), "w": ("points",)})
    latents = {
        "rate": jnp.float32(1.3),
        "share": jnp.float32(0.6),
        "chances": jnp.array([0.2, 0.3, 0.5]),
        "mean": jnp.float32(0.2),
        "scale": jnp.float32(1.1),
    }
    others = {
        "rate": [0.2, 4.0],
        "share": [0.05, 0.9],
        "chances": [[0.8, 0.1, 0.1], [0.01, 0.09, 0.9]],
        "mean": [-2.0, 1.5],
    }

    @jax.jit
    def gaps_and_scores():
        found = {}
        for index, block in enumerate(sampler.built.blocks):
            (name,) = block.sites
            if name not in others:
                continue
            conditional = conditional_at(sampler.built, index, data, latents)
            bound = block.kernel.bind(KEY, conditional)
            values = [{name: jnp.asarray(value, jnp.float32)} for value in (latents[name], *others[name])]
            gaps = [conditional.reduce(conditional.log_probs(v)) - bound.score(v) for v in values]
            drawn, log_q = bound.draw()
            found[name] = jnp.stack(gaps), bound.score(drawn), log_q
        return found

    for name, (gaps, scored, log_q) in gaps_and_scores().items():
        np.testing.assert_allclose(gaps, np.stack([gaps[0]] * 3), atol=2e-3, err_msg=name)
        np.testing.assert_allclose(scored, log_q, rtol=1e-5)


def test_a_model_of_exact_updates_draws_its_posterior_at_once():
    def counts(y):
        rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
        share = numpyro.sample("share", dist.Beta(2.0, 2.0))
        with numpyro.plate("points", y.shape[0]):
            numpyro.sample("count", dist.Poisson(rate), obs=y[:, 0])
            numpyro.sample("heads", dist.Binomial(10, share), obs=y[:, 1])

    sampler = pg.APG(counts, data={"y": ("points", None)}, example={"y": Y})
    assert sampler.built.bridge is None  # every first draw sees all factors of its site
    posterior = sampler.sample(KEY, [{"y": Y}], num_sweeps=2, num_particles=10, num_populations=100)
    assert posterior.acceptance.mean() > 0.999
    a, b = 3.0 + Y[:, 0].sum(), 2.0 + len(Y)
    oracles.assert_mean(posterior[0]["rate"].mean(axis=1), a / b)
    heads, tails = 2.0 + Y[:, 1].sum(), 2.0 + (10 - Y[:, 1]).sum()
    exact = 3 * np.log(2.0) - gammaln(3.0) + gammaln(a) - a * np.log(b) - gammaln(Y[:, 0] + 1).sum()
    exact += betaln(heads, tails) - betaln(2.0, 2.0)
    exact += np.sum(gammaln(11) - gammaln(Y[:, 1] + 1) - gammaln(11 - Y[:, 1]))
    np.testing.assert_allclose(posterior.log_evidence, exact, atol=2e-3)  # weights do not vary


def test_newton_reaches_a_scale_far_from_its_prior():
    """The mode of log σ is five prior scales away, where each plain Newton step moves by a half."""

    def spread(y):
        sigma = numpyro.sample("sigma", dist.HalfCauchy(5.0))
        with numpyro.plate("points", y.shape[0]):
            numpyro.sample("y", dist.Normal(0.0, sigma), obs=y)

    y = np.array([-410.0, 630.0, 220.0, -80.0, 515.0, -340.0], np.float32)
    sampler = pg.APG(spread, data={"y": "points"}, example={"y": y}, initial=pg.Bridge(10))
    posterior = sampler.sample(KEY, [{"y": y}], num_sweeps=10, num_particles=10, num_populations=100)
    assert posterior.acceptance[0, :, -1].mean() > 0.8
    grid = np.exp(np.linspace(3.0, 12.0, 4001))
    log_p = -6 * np.log(grid) - 0.5 * np.sum(y.astype(float) ** 2) / grid**2 - np.log1p((grid / 5) ** 2)
    weights = np.exp(log_p - log_p.max()) * grid
    exact = np.sum(weights * np.log(grid)) / np.sum(weights)
    oracles.assert_mean(np.log(posterior[0]["sigma"]).mean(axis=1), exact)
