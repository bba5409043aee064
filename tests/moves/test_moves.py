"""Moves that accept or reject leave the exact posterior invariant under any proposal."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import popgibbs as pg
from models import conditional_at, vague_labels, vague_means
from oracles import assert_mean, chain, chain_posterior, pair, pair_draws, pair_expectation
from popgibbs.data import Data, complete
from popgibbs.model import Particle
from popgibbs.moves import Metropolis, MoveKeys
from popgibbs.moves.hmc import _log_marginal
from popgibbs.smc import Population, run, update

pytestmark = pytest.mark.usefixtures("quick_compilation")

X = np.array([-1.0, 0.4, 2.2], np.float32)
NUM_DRAWS = 20_000
NUM_UPDATES = 4


def moved(apg: pg.APG, instance: dict, index: int, latents: dict) -> tuple[Population, np.ndarray]:
    """A population of exact draws after several updates of one block, and the acceptance rate of each."""
    sampler, data = apg.check(instance), complete(instance, apg.axes)
    target = sampler.target(data)

    def run(latents):
        population = Population(
            particles=Particle(latents, jax.vmap(target.log_probs)(latents)),
            log_weights=jnp.zeros(NUM_DRAWS),
            log_evidence=jnp.zeros(()),
            ancestors=jnp.arange(NUM_DRAWS),
            degenerate=jnp.zeros((), bool),
        )

        def step(population, key):
            population, _, report = update(key, sampler, index, data, population)
            return population, report.acceptance

        population, acceptance = jax.lax.scan(step, population, jax.random.split(jax.random.key(1), NUM_UPDATES))
        return population, acceptance, jax.vmap(target.log_probs)(population.particles.latents)

    population, acceptance, log_probs = jax.jit(run)({name: jnp.asarray(value) for name, value in latents.items()})
    for name, log_prob in log_probs.items():  # particles carry the log-probabilities of their state
        np.testing.assert_allclose(population.particles.log_probs[name], log_prob, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(population.log_weights, np.zeros(NUM_DRAWS))
    np.testing.assert_array_equal(population.ancestors, np.arange(NUM_DRAWS))
    return population, np.asarray(acceptance)


# The mixture: poor proposals, accepted as a whole, by component, and by point -------------------------------------------


def vague_both(data, latents, model):
    vague_means(data, latents, model)
    vague_labels(data, latents, model)


@cache
def mixture() -> pg.APG:
    """A sampler with a block in a plate that is weighed as a whole, about which the build warns."""
    move = pg.Metropolis()
    blocks = [
        pg.Block("mu", "c", proposal=vague_both, move=move),
        pg.Block("mu", proposal=vague_means, move=move, assigned_by="c"),
        pg.Block("c", proposal=vague_labels, move=move),
        pg.Block("mu", proposal=vague_means, move=move),
        pg.Block("c", proposal=pg.Prior(), move=move),
    ]
    apg = pg.APG(pair, data={"x": "points"}, blocks=blocks)
    with pytest.warns(
        UserWarning, match=r"block 'mu': its elements in the plate 'clusters' are weighed together.*assigned_by="
    ):
        apg.check({"x": X})
    return apg


def features(c, mu, squares):
    """Functions of the latents that are linear in μ, μ² and μ₀μ₁ given c."""
    mu_0, mu_1 = mu[..., 0], mu[..., 1]
    c_0, c_1, c_2 = c[..., 0], c[..., 1], c[..., 2]
    return np.stack(
        [
            mu_0,
            mu_1,
            squares[..., 0],
            squares[..., 1],
            mu_0 * mu_1,
            c_0 == c_1,
            c_1 == c_2,
            c_0 == c_2,
            mu_0 * (c_0 == 0),
            mu_1 * (c_2 == 1),
            squares[..., 0] * (c_1 == 0),
            squares[..., 1] * (c_0 == 0),
        ],
        axis=-1,
    )


@pytest.mark.parametrize(
    ("index", "elements"),
    [(0, ()), (1, ("clusters",)), (2, ("points",)), (3, ()), (4, ("points",))],
    ids=["both as a whole", "means by component", "labels by point", "means as a whole", "labels from the prior"],
)
def test_metropolis_leaves_the_posterior_of_a_mixture_invariant(index, elements):
    draws = pair_draws(np.random.default_rng(0), X, NUM_DRAWS)
    population, acceptance = moved(mixture(), {"x": X}, index, draws)
    assert mixture().built.partitions[index].plates == elements
    assert np.all((acceptance > 0.05) & (acceptance < 0.8))
    c, mu = (np.asarray(population.particles.latents[name], np.float64) for name in ("c", "mu"))
    assert_mean(features(c, mu, mu**2), pair_expectation(X, features))


def test_elements_are_accepted_separately():
    """By component, one mean may move while the other stays; as a whole, both move or neither."""
    sampler, data = mixture().check({"x": X}), complete({"x": X}, mixture().axes)
    latents = {"mu": jnp.array([1.0, -1.0]), "c": jnp.array([1, 0, 0])}
    particle = Particle(latents, sampler.target(data).log_probs(latents))

    def moves(index: int) -> np.ndarray:
        def move(key):
            keys = MoveKeys(*jax.random.split(key))
            conditional = conditional_at(sampler, index, data, latents)
            bound = sampler.blocks[index].kernel.bind(keys.draw, conditional)
            after, _, info = Metropolis()(keys, bound, conditional, particle)
            return after.latents["mu"] != latents["mu"], info.accepted

        changed, accepted = jax.jit(jax.vmap(move))(jax.random.split(jax.random.key(0), 200))
        np.testing.assert_array_equal(np.broadcast_to(accepted, (200, 2)), changed)
        return np.asarray(changed)

    by_component, whole = moves(1), moves(3)
    assert np.any(by_component[:, 0] != by_component[:, 1])
    assert np.all(whole[:, 0] == whole[:, 1])
    assert np.any(whole)


# Hamiltonian Monte Carlo ---------------------------------------------------------------------------------------------


def anywhere(data, latents, model):
    numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.sample("b", dist.Normal(0.0, 1.0))


def test_hmc_leaves_the_posterior_of_a_chain_invariant():
    x = X[1:]
    blocks = [pg.Block("a", "b", proposal=anywhere, move=pg.HMC(step_size=1.0, num_steps=3))]
    apg = pg.APG(chain, data={"x": "points"}, blocks=blocks)
    mean, covariance = chain_posterior(x)
    draws = np.random.default_rng(0).multivariate_normal(mean, covariance, NUM_DRAWS).astype(np.float32)
    population, acceptance = moved(apg, {"x": x}, 0, {"a": draws[:, 0], "b": draws[:, 1]})
    assert np.all((acceptance > 0.1) & (acceptance < 0.9))
    after = np.stack([population.particles.latents[name] for name in ("a", "b")], axis=-1).astype(np.float64)
    assert not np.allclose(after, draws, atol=0.1)
    assert_mean(after, mean)
    centred = after - mean
    assert_mean(centred[:, :, None] * centred[:, None, :], covariance)


def counts(x):
    """A positive rate and counts: conjugate, and constrained, so that HMC moves on the log scale."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Poisson(rate), obs=x)


def test_hmc_leaves_the_posterior_of_a_constrained_site_invariant():
    x = np.array([1, 0, 3])
    apg = pg.APG(
        counts,
        data={"x": "points"},
        blocks=[pg.Block("rate", proposal=pg.Prior(), move=pg.HMC(step_size=0.9, num_steps=2))],
    )
    posterior = stats.gamma(2 + x.sum(), scale=1 / (1 + len(x)))
    draws = posterior.rvs(NUM_DRAWS, random_state=np.random.default_rng(0)).astype(np.float32)
    population, acceptance = moved(apg, {"x": x}, 0, {"rate": draws})
    assert np.all((acceptance > 0.1) & (acceptance < 0.95))
    after = np.asarray(population.particles.latents["rate"], np.float64)
    powers = np.stack([after, after**2, np.log(after), after < posterior.median()], axis=-1)
    log_mean = posterior.expect(np.log)
    assert_mean(powers, np.array([posterior.moment(1), posterior.moment(2), log_mean, 0.5]))


def test_hmc_with_labels_summed_out_leaves_the_posterior_of_a_mixture_invariant():
    blocks = [pg.Block("c", "mu", proposal=vague_both, move=pg.HMC(step_size=0.8, num_steps=3))]
    apg = pg.APG(pair, data={"x": "points"}, blocks=blocks)
    draws = pair_draws(np.random.default_rng(0), X, NUM_DRAWS)
    population, acceptance = moved(apg, {"x": X}, 0, draws)
    assert np.all((acceptance > 0.1) & (acceptance < 0.95))
    c, mu = (np.asarray(population.particles.latents[name], np.float64) for name in ("c", "mu"))
    assert not np.allclose(mu, draws["mu"], atol=0.1)
    assert_mean(features(c, mu, mu**2), pair_expectation(X, features))


def test_labels_are_summed_out_over_real_points_only():
    """HMC's density of a padded instance equals the enumeration over the assignments of its real points."""
    apg = pg.APG(
        pair, data={"x": "points"}, blocks=[pg.Block("c", "mu", proposal=vague_both, move=pg.HMC(step_size=1.0))]
    )
    sampler, mu = apg.check({"x": X}), np.array([0.7, -0.4], np.float32)
    data = Data({"x": jnp.append(X, 0.3)}, {"points": jnp.arange(4) < 3})
    latents = {"mu": jnp.asarray(mu), "c": jnp.zeros(4, int)}
    found = jax.jit(
        lambda: _log_marginal(jax.random.key(0), conditional_at(sampler, 0, data, latents), {"mu": latents["mu"]})
    )()
    by_point = np.logaddexp(*(stats.norm(m, 1).logpdf(X) for m in mu)) - np.log(2)
    np.testing.assert_allclose(found, np.sum(stats.norm(0, 2).logpdf(mu)) + np.sum(by_point), rtol=1e-5)


def bounded(x):
    """A support that depends on a site of the same block: b is below a."""
    a = numpyro.sample("a", dist.LogNormal(0.0, 0.5))
    b = numpyro.sample("b", dist.Uniform(0.0, a))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(b, 0.5), obs=x)


def test_hmc_leaves_the_posterior_of_a_dependent_support_invariant():
    """Compared to a grid over b / a and log a; no draw leaves its support."""
    x = np.array([0.9, 1.1], np.float32)
    apg = pg.APG(
        bounded,
        data={"x": "points"},
        blocks=[pg.Block("a", "b", proposal=pg.Prior(), move=pg.HMC(step_size=0.5, num_steps=3))],
    )
    log_a, share = np.meshgrid(np.linspace(-2.5, 2.5, 501), (np.arange(400) + 0.5) / 400, indexing="ij")
    a, b = np.exp(log_a), np.exp(log_a) * share
    weights = stats.norm(0, 0.5).pdf(log_a) * np.prod(stats.norm(b[..., None], 0.5).pdf(x), axis=-1)
    weights /= weights.sum()
    chosen = np.random.default_rng(0).choice(weights.size, NUM_DRAWS, p=weights.ravel())
    draws = {"a": a.ravel()[chosen].astype(np.float32), "b": b.ravel()[chosen].astype(np.float32)}
    population, acceptance = moved(apg, {"x": x}, 0, draws)
    assert np.all((acceptance > 0.3) & (acceptance < 0.99))
    after = {name: np.asarray(population.particles.latents[name], np.float64) for name in ("a", "b")}
    assert np.all((after["b"] > 0) & (after["b"] < after["a"]))
    assert not np.allclose(after["b"], draws["b"], atol=0.1)
    found = np.stack([after["a"], after["b"], np.log(after["a"]), after["b"] / after["a"]], axis=-1)
    exact = np.sum(weights[..., None] * np.stack([a, b, log_a, share], axis=-1), axis=(0, 1))
    assert_mean(found, exact)


def widths(x):
    """One positive number per point."""
    with numpyro.plate("points", x.shape[0]):
        s = numpyro.sample("s", dist.LogNormal(0.0, 0.5))
        t = numpyro.sample("t", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(t, s), obs=x)


def test_padded_elements_do_not_affect_hmc():
    """An instance has the same samples and the same acceptance rate with and without padding."""
    apg = pg.APG(
        widths,
        data={"x": "points"},
        blocks=[pg.Block("s", "t", proposal=pg.Prior(), move=pg.HMC(step_size=0.3, num_steps=4))],
    )
    x = np.random.default_rng(0).normal(size=12).astype(np.float32)
    sampler = apg.check({"x": x})

    def run_padded(size: int) -> tuple:
        data = Data({"x": jnp.asarray(np.resize(x[:3], size))}, {"points": jnp.arange(size) < 3})
        batch = jax.tree.map(lambda leaf: leaf[None], data)
        population, info, _ = jax.jit(
            lambda: run(sampler, jax.random.split(jax.random.key(0), 1), batch, num_sweeps=30, num_particles=20)
        )()
        return population.particles.latents, info.acceptance

    (alone, accepted_alone), (padded, accepted_padded) = run_padded(3), run_padded(12)
    # Trajectories of tens of leapfrog steps amplify rounding, so only the first sweeps must agree closely.
    np.testing.assert_allclose(accepted_padded[:6], accepted_alone[:6], rtol=1e-3)
    np.testing.assert_allclose(accepted_padded[-10:].mean(), accepted_alone[-10:].mean(), atol=0.03)
    for name in ("s", "t"):
        same = np.isclose(padded[name][..., :3], alone[name], rtol=1e-2, atol=1e-2)
        assert same.mean() > 0.9


def test_hmc_does_not_sum_out_a_site_on_which_a_support_depends():
    def model(x):
        c = numpyro.sample("c", dist.Bernoulli(0.5))
        b = numpyro.sample("b", dist.Uniform(0.0, 1.0 + c))
        with numpyro.plate("points", x.shape[0]):
            numpyro.sample("x", dist.Normal(b, 0.5), obs=x)

    block = pg.Block("c", "b", proposal=pg.Prior(), move=pg.HMC(step_size=0.1))
    with pytest.raises(ValueError, match=r"block 'c,b': HMC cannot sum out 'c', on which the support of 'b' depends"):
        pg.APG(model, data={"x": "points"}, blocks=[block], example={"x": X})
