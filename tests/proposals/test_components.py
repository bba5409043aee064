"""First draws of mixtures by EM."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import gammaln, logsumexp
from tests import oracles

import popgibbs as pg
from popgibbs.building import first_draws
from popgibbs.data import complete

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)


def counts(y):
    """Counts of two kinds, with an unknown share of each kind."""
    shares = numpyro.sample("shares", dist.Dirichlet(np.array([2.0, 2.0])))
    with numpyro.plate("kinds", 2):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
    with numpyro.plate("points", y.shape[0]):
        c = numpyro.sample("c", dist.Categorical(shares))
        numpyro.sample("y", dist.Poisson(rate[c]), obs=y)


def counts_log_evidence(y: np.ndarray) -> float:
    """By enumeration of all assignments; rates and shares are integrated in closed form."""
    every = np.array(list(np.ndindex(*[2] * len(y))))
    total = np.full(len(every), -np.sum(gammaln(y + 1)))
    sizes = np.stack([np.sum(every == k, axis=1) for k in range(2)])
    for k in range(2):
        shape = 2.0 + np.sum((every == k) * y, axis=1)
        total += 2 * np.log(0.5) - gammaln(2.0) + gammaln(shape) - shape * np.log(0.5 + sizes[k])
    total += gammaln(4.0) - 2 * gammaln(2.0) + gammaln(2.0 + sizes).sum(axis=0) - gammaln(4.0 + len(y))
    return float(logsumexp(total))


Y = np.array([1, 0, 9, 12, 2, 11, 1, 0], np.int32)


@pytest.fixture(autouse=True)
def always_by_em(monkeypatch):
    """Mixtures with few entries would anneal instead; `test_few_entries` is about them."""
    monkeypatch.setattr(first_draws, "_FEW", 0)


@pytest.fixture(scope="module")
def sampler():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(first_draws, "_FEW", 0)
        return pg.APG(counts, data={"y": "points"}, example={"y": Y})


@pytest.fixture(scope="module")
def posterior(sampler):
    return sampler.sample(KEY, [{"y": Y}], num_sweeps=0, num_particles=20, num_populations=500)


def test_the_evidence_of_mixtures_agrees_with_enumeration(sampler, posterior):
    assert sampler.built.first is not None
    assert abs(posterior.log_evidence[0] - counts_log_evidence(Y)) < 5 * posterior.log_evidence_error[0]


def test_every_labelling_is_drawn(posterior):
    draws = posterior[0]
    oracles.assert_mean(np.mean(draws["rate"][..., 0] > draws["rate"][..., 1], axis=1), 0.5)
    # The share of a kind follows its rate: both are shuffled together.
    few = np.where(draws["rate"][..., 0] < draws["rate"][..., 1], draws["shares"][..., 0], draws["shares"][..., 1])
    assert np.mean(few) > 0.5


def test_a_component_density_is_that_of_its_draw():
    x = np.array([-1.0, 0.4, 1.3], np.float32)
    sampler = pg.APG(oracles.pair, data={"x": "points"}, example={"x": x})
    posterior = sampler.sample(KEY, [x], num_sweeps=0, num_particles=10, num_populations=500)
    exact = oracles.pair_posterior(x)
    oracles.assert_mean(np.exp(posterior.log_evidence_by_sweep[0, :, 0] - exact.log_evidence), 1.0)


def test_padding_changes_no_first_draw(sampler):
    """Instances of two sizes are padded to one; alone, neither is."""
    budget = {"num_sweeps": 0, "num_particles": 4}
    together = sampler.sample(KEY, [{"y": Y[:5]}, {"y": Y}], **budget)
    alone = sampler.sample(KEY, [{"y": Y[:5]}], **budget)
    np.testing.assert_allclose(together[0]["rate"], alone[0]["rate"], rtol=1e-3)
    np.testing.assert_allclose(together.log_evidence[0], alone.log_evidence[0], atol=1e-2)


def test_mixtures_with_few_entries_anneal_from_the_prior(monkeypatch):
    """Seeds miss modes with an empty component; the bridge is chosen by the size of each instance."""
    monkeypatch.setattr(first_draws, "_FEW", 10)
    sampler = pg.APG(counts, data={"y": "points"}, example={"y": np.tile(Y, 3)})
    few, many = ({"y": np.tile(Y, copies)} for copies in (1, 3))
    assert sampler.built.bridge_for(complete(few, sampler.axes)) is not None
    assert sampler.built.bridge_for(complete(many, sampler.axes)) is None
    assert "with fewer than 20 points" in sampler.describe().first_draw
    posterior = sampler.sample(KEY, [few], num_sweeps=0, num_particles=10, num_populations=100)
    assert abs(posterior.log_evidence[0] - counts_log_evidence(Y)) < 5 * posterior.log_evidence_error[0]
