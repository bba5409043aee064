"""Annealed bridges from the prior to the posterior."""

import jax
import numpy as np
import pytest
from tests import oracles

import popgibbs as pg

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
X = np.array([0.3, 1.9, 1.0, 0.2], np.float32)


def test_the_evidence_of_a_bridge_is_unbiased_at_any_number_of_temperatures():
    exact = oracles.chain_log_evidence(X)
    for num_temperatures, num_populations in ((1, 3000), (4, 1000)):
        sampler = pg.APG(oracles.chain, data={"x": "points"}, initial=pg.Bridge(num_temperatures))
        posterior = sampler.sample(KEY, [X], num_sweeps=0, num_particles=4, num_populations=num_populations)
        oracles.assert_mean(np.exp(posterior.log_evidence_by_sweep[0, :, 0] - exact), 1.0)


def test_weighted_particles_at_the_end_of_a_bridge_are_draws_from_the_posterior():
    sampler = pg.APG(oracles.chain, data={"x": "points"}, initial=pg.Bridge(20))
    posterior = sampler.sample(KEY, [X], num_sweeps=0, num_particles=20, num_populations=400)
    mean, covariance = oracles.chain_posterior(X)
    for name, loc, variance in zip(("a", "b"), mean, np.diag(covariance), strict=True):
        values, weights = posterior[0][name], posterior.weights[0]
        # Means of normalised weights have a bias of order 1/L, small beside the tolerance for 20 particles.
        oracles.assert_mean(np.sum(weights * values, axis=1), loc)
        oracles.assert_mean(np.sum(weights * (values - loc) ** 2, axis=1), variance)


def test_more_temperatures_make_the_evidence_more_accurate():
    spreads = []
    for num_temperatures in (1, 20):
        sampler = pg.APG(oracles.chain, data={"x": "points"}, initial=pg.Bridge(num_temperatures))
        posterior = sampler.sample(KEY, [X + 3], num_sweeps=0, num_particles=10, num_populations=200)
        spreads.append(posterior.log_evidence_by_sweep[0, :, 0].std())
    assert spreads[1] < spreads[0] / 3


def test_a_bridge_needs_a_whole_number_of_temperatures():
    with pytest.raises(ValueError, match="num_temperatures=0 must be at least 1"):
        pg.Bridge(0)
