"""Which sites share a block when no one names blocks, and that the samplers are exact."""

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import logsumexp

import popgibbs as pg
from oracles import assert_mean, normalised

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
SHARE_A, SHARE_B = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.6])
MEAN_A, MEAN_B = np.array([-2.0, 0.0, 2.0]), np.array([-1.0, 1.0])


def factorial(x):
    """x_n ~ Normal(μ + a_n's mean + b_n's mean, 0.3): data tell a_n and b_n only together."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", x.shape[0]):
        a = numpyro.sample("a", dist.Categorical(jnp.asarray(SHARE_A)))
        b = numpyro.sample("b", dist.Categorical(jnp.asarray(SHARE_B)))
        numpyro.sample("x", dist.Normal(mu + jnp.asarray(MEAN_A)[a] + jnp.asarray(MEAN_B)[b], 0.3), obs=x)


def test_a_factorial_mixture_matches_enumeration():
    x = np.array([1.2, -1.1, 0.8], np.float32)
    sampler = pg.APG(factorial, data={"x": "points"}, example={"x": x})
    assert [block.sites for block in sampler.blocks] == [("mu",), ("a", "b")]
    assert sampler.built.partitions[1].plates == ("points",)
    posterior = sampler.sample(KEY, [{"x": x}], num_sweeps=40, num_particles=10, num_populations=300)

    mu = np.linspace(-6, 6, 2401)
    log_point = np.log(SHARE_A[:, None] * SHARE_B)[..., None, None] + stats.norm(
        mu[:, None] + (MEAN_A[:, None] + MEAN_B)[..., None, None], 0.3
    ).logpdf(x)  # (a, b, mu, point)
    by_point = logsumexp(log_point, axis=(0, 1))
    log_joint = stats.norm.logpdf(mu) + by_point.sum(axis=1)
    joint = np.einsum("m,abmn->abn", normalised(log_joint), np.exp(log_point - by_point))
    draws = posterior[0]
    found = np.stack([np.mean((draws["a"] == a) & (draws["b"] == b), axis=1) for a, b in product(range(3), range(2))], 1)
    likely = joint.reshape(6, 3) > 1e-3  # a mean of zeros has no standard error
    assert_mean(found[:, likely], joint.reshape(6, 3)[likely])
    exact = logsumexp(log_joint) + np.log(12 / 2400)
    assert abs(posterior.log_evidence[0] - exact) < 5 * posterior.log_evidence_error[0] + 1e-3


def either(x):
    """Two causes of which exactly one explains the data, so that no single change is possible."""
    a = numpyro.sample("a", dist.Bernoulli(0.3))
    with numpyro.plate("points", x.shape[0]):
        free = numpyro.sample("free", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Bernoulli(0.4))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(5.0 * (a + b) + free, 0.5), obs=x)


def test_explaining_away_does_not_get_stuck():
    """One sweep changes (a, b) from (1, 0) to (0, 1) at once; p(a, b | x) and p(x) by enumeration."""
    x = np.array([5.1, 4.6], np.float32)
    sampler = pg.APG(either, data={"x": "points"}, example={"x": x})
    assert [block.sites for block in sampler.blocks] == [("a", "b"), ("free",)]
    assert isinstance(sampler.blocks[0].proposal, pg.Enumerated)
    posterior = sampler.sample(KEY, [{"x": x}], num_sweeps=10, num_particles=10, num_populations=500)
    log_joint = np.array(
        [
            np.log([0.7, 0.3][a] * [0.6, 0.4][b]) + stats.norm(5 * (a + b), np.hypot(1, 0.5)).logpdf(x).sum()
            for a, b in product(range(2), repeat=2)
        ]
    )
    states = 2 * posterior[0]["a"] + posterior[0]["b"]
    assert_mean((states[..., None] == np.arange(4)).mean(axis=1)[:, 1:3], normalised(log_joint)[1:3])
    assert abs(posterior.log_evidence[0] - logsumexp(log_joint)) < 5 * posterior.log_evidence_error[0] + 1e-3
    moves = sampler.sample(KEY, [{"x": x}], num_sweeps=11, num_particles=10, num_populations=500)
    assert np.mean(2 * moves[0]["a"] + moves[0]["b"] != states) > 0.2


def spiked(x):
    """Spikes and slabs in a plate of components, to which a finite site assigns the points."""
    with numpyro.plate("clusters", 3):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("points", x.shape[0]):
        c = numpyro.sample("c", dist.Categorical(logits=jnp.zeros(3)))
        outlier = numpyro.sample("outlier", dist.Bernoulli(0.1))
        numpyro.sample("x", dist.Normal(mu[c], jnp.where(outlier, 5.0, 0.5)), obs=x)


def test_an_assignment_may_share_its_block():
    """Components are still accepted one by one; p(x) by enumeration of c and the outliers, given which μ is normal."""
    x = np.array([-2.0, 1.5, 2.0], np.float32)
    sampler = pg.APG(spiked, data={"x": "points"}, example={"x": x})
    assert [(block.sites, block.assigned_by) for block in sampler.blocks] == [(("mu",), "c"), (("c", "outlier"), None)]
    posterior = sampler.sample(KEY, [{"x": x}], num_sweeps=10, num_particles=20, num_populations=300)
    terms = []
    for c in product(range(3), repeat=3):
        for outlier in product(range(2), repeat=3):
            same = np.equal.outer(c, c)
            covariance = 9.0 * same + np.diag(np.where(outlier, 25.0, 0.25))
            prior = -3 * np.log(3) + np.sum(np.log(np.where(outlier, 0.1, 0.9)))
            terms.append(prior + stats.multivariate_normal(np.zeros(3), covariance).logpdf(x))
    assert abs(posterior.log_evidence[0] - logsumexp(terms)) < 5 * posterior.log_evidence_error[0]


def many(x):
    """Sites that do not share a block: independent ones, ones of other plates, and ones with many joint values."""
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    apart = numpyro.sample("apart", dist.Bernoulli(p))
    with numpyro.plate("points", x.shape[0]):
        wide = numpyro.sample("wide", dist.Categorical(logits=jnp.zeros(33)))
        first = numpyro.sample("first", dist.Bernoulli(0.5))
        second = numpyro.sample("second", dist.Bernoulli(0.2 + 0.5 * first))
        lone = numpyro.sample("lone", dist.Bernoulli(0.5))
        numpyro.sample("seen", dist.Normal(lone, 1.0), obs=x)
        numpyro.sample("x", dist.Normal(wide + second + apart, 1.0), obs=x)


def test_only_few_values_of_dependent_sites_of_the_same_plates_are_enumerated_together():
    blocks: Any = pg.APG(many, data={"x": "points"}, example={"x": np.zeros(3, np.float32)}).blocks
    assert [block.sites for block in blocks] == [("p",), ("apart",), ("wide",), ("first", "second"), ("lone",)]
