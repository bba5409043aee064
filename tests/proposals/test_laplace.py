"""Proposals built from the model: a Gaussian at the conditional's mode, and blocks that no one named."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import betaln, gammaln
from tests import oracles
from tests.models import centred, conditional_at

import popgibbs as pg
from popgibbs.data import complete
from popgibbs.model import Coordinates

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)


def test_laplace_is_exact_where_the_conditional_is_gaussian():
    """Without the wide part, log p − log q is the same number at every value: q is the conditional itself."""
    x = np.array([[0.3, -1.0], [2.0, 0.4], [1.0, 1.0]], np.float32)
    blocks = [pg.Block("mu", proposal=pg.Laplace(wide=0.0)), pg.Block("z", proposal=pg.Laplace(wide=0.0))]
    built = pg.APG(centred, data={"x": "points"}, blocks=blocks, example={"x": x}).built
    data = complete({"x": x}, {"x": ("points",)})
    latents = {"mu": jnp.array([0.5, -0.2]), "z": jnp.asarray(x) * 0.7}
    for index, name in enumerate(("mu", "z")):

        @jax.jit
        def gap(value, index=index, name=name):
            conditional = conditional_at(built, index, data, latents)
            bound = built.blocks[index].kernel.bind(KEY, conditional)
            return conditional.reduce(conditional.log_probs({name: value})) - bound.score({name: value})

        gaps = [gap(latents[name] + shift) for shift in (-1.0, 0.0, 0.6)]
        np.testing.assert_allclose(np.stack(gaps), np.stack(gaps[:1] * 3), atol=2e-4)


def test_positions_far_away_are_values_whose_density_is_a_number():
    """A draw of a wide Gaussian may lie where exp overflows; its weight is zero, and no failure."""
    y = np.array([[2, 7], [0, 9]], np.int32)
    built = pg.APG(positive, data={"y": ("points", None)}, example={"y": y}).built
    data = complete({"y": y}, {"y": ("points", None)})
    coordinates = Coordinates(conditional_at(built, 0, data, {"rate": jnp.float32(1.0), "share": jnp.float32(0.5)}))
    for position in (-300.0, 300.0):
        assert 0.0 < coordinates.values(jnp.array([[position]]))["rate"] < jnp.inf
        assert not jnp.isnan(coordinates.log_density(jnp.array([[position]])))[0]


def positive(y):
    """A rate and a probability with conjugate posteriors, which have no Gaussian conditional on the real line."""
    rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    with numpyro.plate("points", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y[:, 0])
        numpyro.sample("heads", dist.Binomial(10, share), obs=y[:, 1])


def test_automatic_blocks_give_conjugate_posteriors_and_the_exact_evidence():
    y = np.array([[2, 7], [0, 9], [3, 6], [1, 8]], np.int32)
    sampler = pg.APG(positive, data={"y": ("points", None)}, example={"y": y})
    assert [block.sites for block in sampler.blocks] == [("rate",), ("share",)]
    posterior = sampler.sample(KEY, [{"y": y}], num_sweeps=20, num_particles=10, num_populations=200)
    shape, rate, a, b = 3.0 + y[:, 0].sum(), 2.0 + len(y), 2.0 + y[:, 1].sum(), 2.0 + (10 - y[:, 1]).sum()
    oracles.assert_mean(np.asarray(posterior[0]["rate"]).mean(axis=1), shape / rate)
    oracles.assert_mean(np.asarray(posterior[0]["share"]).mean(axis=1), a / (a + b))
    log_choose = gammaln(11) - gammaln(y[:, 1] + 1) - gammaln(11 - y[:, 1])
    exact = 3 * np.log(2.0) - gammaln(3.0) + gammaln(shape) - shape * np.log(rate) - gammaln(y[:, 0] + 1).sum()
    exact += log_choose.sum() + betaln(a, b) - betaln(2.0, 2.0)
    assert abs(posterior.log_evidence[0] - exact) < 5 * posterior.log_evidence_error[0] + 1e-3


def test_components_are_accepted_one_by_one_by_the_assignment_that_the_model_has():
    x = np.array([-1.0, 0.4, 1.3], np.float32)
    sampler = pg.APG(oracles.pair, data={"x": "points"}, example={"x": x})
    assert [block.assigned_by for block in sampler.blocks] == ["c", None]
    assert isinstance(sampler.blocks[1].proposal, pg.Enumerated)
    posterior = sampler.sample(KEY, [x], num_sweeps=20, num_particles=10, num_populations=300)
    exact = oracles.pair_posterior(x)
    squares = np.sum(exact.probability * np.mean(exact.loc**2 + exact.scale**2, axis=1))  # invariant to labels
    oracles.assert_mean(np.mean(np.asarray(posterior[0]["mu"]) ** 2, axis=(1, 2)), squares)
    assert abs(posterior.log_evidence[0] - exact.log_evidence) < 5 * posterior.log_evidence_error[0]


def test_what_cannot_be_built_is_refused_or_said():
    def mixed(x):
        switch = numpyro.sample("switch", dist.Bernoulli(0.5))
        mu = numpyro.sample("mu", dist.Normal(switch, 1.0))
        count = numpyro.sample("count", dist.Poisson(2.0))
        with numpyro.plate("points", x.shape[0]):
            numpyro.sample("x", dist.Normal(mu + count, 1.0), obs=x)

    x = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match=r"'mu,count'.*\['count'\] into separate blocks"):
        pg.APG(mixed, data={"x": "points"}, blocks=[pg.Block("switch"), pg.Block("mu", "count")], example=x)
    blocks = pg.APG(mixed, data={"x": "points"}, example=x).blocks
    assert [block.sites for block in blocks] == [("switch", "mu"), ("count",)]
    assert isinstance(blocks[1].proposal, pg.Counts)


def test_a_sampler_without_arrays_says_that_there_is_nothing_to_save(tmp_path):
    x = np.zeros(3, np.float32)
    sampler = pg.APG(oracles.pair, data={"x": "points"}, example=x)
    with pytest.raises(pg.CheckpointError, match="no trained arrays"):
        sampler.save(tmp_path)
