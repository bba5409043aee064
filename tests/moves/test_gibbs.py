"""Finite sites whose entries depend on each other given the rest: enumerated together, or drawn one after another."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import logsumexp

import popgibbs as pg
from oracles import assert_mean

pytestmark = pytest.mark.usefixtures("quick_compilation")

COUPLING, UP = 0.8, 0.4
Y = np.array([[0.3, -0.5, 1.4, 2.2], [1.1, 0.9, 2.5, -0.3], [1.6, 0.2, 0.1, 0.8]], np.float32)


def spins(y):
    """Rows of spins z_rc ∈ {0, 1} that agree with their neighbours in a row more often than not; y_rc ~ N(2 z_rc, 1)."""
    rows = numpyro.plate("rows", y.shape[0], dim=-2)
    with rows, numpyro.plate("columns", y.shape[1], dim=-1):
        z = numpyro.sample("z", dist.Bernoulli(UP))
        numpyro.sample("y", dist.Normal(2.0 * z, 1.0), obs=y)
    with rows:
        numpyro.factor("neighbours", COUPLING * jnp.sum(z[:, 1:] == z[:, :-1], axis=1, keepdims=True))


def row_of_spins(y: np.ndarray) -> tuple[float, np.ndarray]:
    """Log evidence of one row, and the probability that each spin is up."""
    states = np.array(list(product((0, 1), repeat=len(y))))
    prior = stats.bernoulli(UP).logpmf(states).sum(1) + COUPLING * np.sum(states[:, 1:] == states[:, :-1], axis=1)
    log_joint = prior + stats.norm(2.0 * states, 1.0).logpdf(y).sum(1)
    log_evidence = logsumexp(log_joint)
    return float(log_evidence), np.exp(log_joint - log_evidence) @ states


def exact() -> tuple[float, np.ndarray]:
    found = [row_of_spins(row) for row in Y]
    return sum(log_evidence for log_evidence, _ in found), np.stack([up for _, up in found])


def test_entries_of_small_elements_are_enumerated_together():
    sampler = pg.APG(spins, data={}, example={"y": Y})
    assert sampler.blocks[0].proposal == pg.Enumerated()
    posterior = sampler.sample(jax.random.key(0), [{"y": Y}], num_populations=1000, num_particles=4, num_sweeps=1)
    log_evidence, up = exact()
    np.testing.assert_allclose(posterior.log_evidence_by_sweep, log_evidence, rtol=2e-6)
    assert_mean(posterior[0]["z"].reshape(-1, 4, *Y.shape).mean(1), up)


def one_field(y):
    """The same density with one factor for all rows, so that the spins are weighed as a whole."""
    with numpyro.plate("rows", y.shape[0], dim=-2), numpyro.plate("columns", y.shape[1], dim=-1):
        z = numpyro.sample("z", dist.Bernoulli(UP))
        numpyro.sample("y", dist.Normal(2.0 * z, 1.0), obs=y)
    numpyro.factor("neighbours", COUPLING * jnp.sum(z[:, 1:] == z[:, :-1]))


@pytest.mark.parametrize("model", [spins, one_field])
def test_gibbs_keeps_particles_properly_weighted(model):
    """E[Ẑ] = Z and E[Ẑ f] = Z E[f | y] after every sweep, for elements that are independent and for one whole."""
    blocks = [pg.Block("z", move=pg.Gibbs())]
    sampler = pg.APG(model, data={}, blocks=blocks, example={"y": Y}, initial=pg.Bridge(5))
    posterior = sampler.sample(jax.random.key(1), [{"y": Y}], num_populations=2000, num_particles=5, num_sweeps=2)
    log_evidence, up = exact()
    ratio = np.exp(posterior.log_evidence_by_sweep[0].astype(float) - log_evidence)
    for sweep in range(ratio.shape[-1]):
        assert_mean(ratio[:, sweep], 1.0)
    weights = posterior.weights[0].reshape(2000, 5)
    weights = weights / weights.sum(1, keepdims=True)
    means = np.einsum("pl,plrc->prc", weights, posterior[0]["z"].reshape(2000, 5, *Y.shape))
    assert_mean(ratio[:, -1, None, None] * means, up)


def test_entries_with_many_joint_values_are_drawn_one_after_another():
    sampler = pg.APG(one_field, data={}, example={"y": Y})  # 4,096 joint values
    assert isinstance(sampler.blocks[0].move, pg.Gibbs)
    assert "annealed" in str(sampler.describe())


def test_what_cannot_be_enumerated_or_drawn_in_turn_is_refused():
    many = {"y": np.zeros((3, 5), np.float32)}
    with pytest.raises(ValueError, match=r"block 'z': Enumerated would go through 32,768 joint values.*pg.Gibbs\(\)"):
        pg.APG(one_field, data={}, blocks=[pg.Block("z", proposal=pg.Enumerated())], example=many)
    ragged = {"y": ("rows", "columns")}
    with pytest.raises(ValueError, match=r"through any number of joint values.*\['z'\]"):
        pg.APG(spins, data=ragged, blocks=[pg.Block("z", proposal=pg.Enumerated())], example={"y": Y})

    def located(x):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(mu, 1.0).expand(x.shape).to_event(1), obs=x)

    with pytest.raises(ValueError, match=r"block 'mu': Gibbs\(\) needs finite discrete sites; \['mu'\] are not"):
        pg.APG(located, data={}, blocks=[pg.Block("mu", move=pg.Gibbs())], example={"x": Y[0]})
