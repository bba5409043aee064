"""Proper weights: the evidence, and the evidence times weighted means, are unbiased after every block."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.nn import logsumexp
from scipy import stats

import popgibbs as pg
from oracles import (
    GATE,
    STEP,
    SWITCH,
    assert_mean,
    chain,
    chain_log_evidence,
    chain_posterior,
    given_a,
    given_b,
    given_x,
    pair,
    pair_posterior,
    switch_log_evidence,
    switches,
)
from popgibbs.data import Data
from popgibbs.smc import normalise, run

pytestmark = pytest.mark.usefixtures("quick_compilation")

X = np.array([0.4, 1.3], np.float32)
NUM_RUNS = 20_000


def log_evidence(population):
    return population.total_log_evidence


def assert_unbiased(log_estimates, log_evidence: float) -> None:
    """Check that Ẑ/Z, with leading axes (step, run), has mean 1 at every step to 2%, and is not constant."""
    ratios = np.exp(np.asarray(log_estimates, np.float64) - log_evidence)
    deviation = ratios.std(axis=1)
    assert np.all((deviation > 0.05) & (deviation / np.sqrt(ratios.shape[1]) < 0.02)), deviation
    assert_mean(ratios.T, 1.0)


# Proposals that miss their conditional by a shift and by a scale whose square is between 3/4 and 4/3, so that weights
# have finite fourth moments and the standard errors can be trusted.


def miss(site: str, loc, scale, shift: float, stretch: float) -> None:
    numpyro.sample(site, dist.Normal(loc + shift * scale, stretch * scale))


def near_a(data, latents, model):
    miss("a", *(given_b(latents["b"]) if "b" in latents else given_x(data)), shift=0.3, stretch=1.1)


def near_b(data, latents, model):
    miss("b", *given_a(latents["a"], data), shift=-0.3, stretch=0.92)


def near_both(data, latents, model):
    a = numpyro.sample("a", dist.Normal(given_x(data)[0] - 0.2, 1.1 * given_x(data)[1]))
    miss("b", *given_a(a, data), shift=0.2, stretch=1.1)


def wide_b(data, latents, model):
    numpyro.sample("b", dist.Normal(latents["a"], 1.5))


CHAINS = {
    "one block for each site, stratified below 0.8": (
        [pg.Block("a", proposal=near_a), pg.Block("b", proposal=near_b)],
        {"resample": pg.stratified, "ess_threshold": 0.8},
    ),
    "a joint block, residual": ([pg.Block("a", "b", proposal=near_both)], {"resample": pg.residual}),
    "overlapping blocks, multinomial below 0.9": (
        [pg.Block("a", proposal=near_a), pg.Block("a", "b", proposal=near_both), pg.Block("b", proposal=near_b)],
        {"resample": pg.multinomial, "ess_threshold": 0.9},
    ),
    "weighed, Metropolis and HMC moves": (
        [
            pg.Block("a", proposal=near_a),
            pg.Block("b", proposal=wide_b, move=pg.Metropolis()),
            pg.Block("a", "b", move=pg.HMC(step_size=0.9, num_steps=2)),
        ],
        {},
    ),
    "HMC from another sampler's first draws": (
        [pg.Block("a", "b", move=pg.HMC(step_size=0.9, num_steps=2))],
        {
            "initial": pg.APG(
                chain, data={"x": "points"}, blocks=[pg.Block("a", proposal=near_a), pg.Block("b", proposal=near_b)]
            )
        },
    ),
}


@pytest.mark.parametrize(("blocks", "options"), CHAINS.values(), ids=CHAINS.keys())
def test_evidence_and_weighted_means_are_unbiased_after_every_block_of_a_chain(every_block, blocks, options):
    apg = pg.APG(chain, data={"x": "points"}, blocks=blocks, **options)

    def report(population):
        weights = normalise(population.log_weights)
        a, b = (population.particles.latents[name] for name in ("a", "b"))
        means = jnp.stack([weights @ function for function in (a, b, a**2, a * b)], axis=-1)
        return population.total_log_evidence, means

    log_estimates, means = every_block(apg, {"x": X}, report, num_runs=NUM_RUNS, num_sweeps=2, num_particles=4)
    exact = chain_log_evidence(X)
    assert_unbiased(log_estimates, exact)
    (mean_a, mean_b), covariance = chain_posterior(X)
    moments = [mean_a, mean_b, covariance[0, 0] + mean_a**2, covariance[0, 1] + mean_a * mean_b]
    ratios = np.exp(np.asarray(log_estimates, np.float64) - exact)
    for step in range(len(ratios)):
        assert_mean(ratios[step, :, None] * means[step], np.array(moments))


def tempered_table(x):
    """0.8 log p(g, h, x_n | s), with axes (s, point, g, h): flatter than the conditionals it replaces."""
    s, g, h = (jnp.arange(size).reshape(shape) for size, shape in ((3, (3, 1, 1, 1)), (2, (2, 1)), (3, (3,))))
    gate = jnp.stack([1 - jnp.asarray(GATE), jnp.asarray(GATE)], axis=-1)[:, None, :, None]
    likelihood = dist.Normal(s + 2.0 * g - h, 1.0).log_prob(x[:, None, None])
    return 0.8 * (jnp.log(gate) + jnp.log(jnp.asarray(STEP)) + likelihood)


def near_s(data, latents, model):
    logits = jnp.log(jnp.asarray(SWITCH))
    if "g" in latents:
        table = tempered_table(data["x"])
        chosen = table[:, jnp.arange(table.shape[1]), latents["g"], latents["h"]]
        logits += jnp.sum(jnp.where(data.mask["points"], chosen, 0.0), axis=-1)
    numpyro.sample("s", dist.Categorical(logits=logits))


def near_locals(data, latents, model):
    table = tempered_table(data["x"])[latents["s"]]
    logits = logsumexp(table, axis=-1)
    g = numpyro.sample("g", dist.Bernoulli(logits=logits[:, 1] - logits[:, 0]))
    numpyro.sample("h", dist.Categorical(logits=table[jnp.arange(table.shape[0]), g]))


def test_evidence_is_unbiased_after_every_block_of_a_discrete_model(every_block):
    blocks = [pg.Block("s", proposal=near_s), pg.Block("g", "h", proposal=near_locals)]
    apg = pg.APG(switches, data={"x": "points"}, blocks=blocks)
    estimates = every_block(apg, {"x": X}, log_evidence, num_runs=NUM_RUNS, num_sweeps=2, num_particles=3)
    assert_unbiased(estimates, switch_log_evidence(X))


class Means:
    """Near the conditional of each mean given the assignments; the first draw is near the prior."""

    def __call__(self, data, latents, model):
        mine = (latents["c"][:, None] == jnp.arange(2)) & data.mask["points"][:, None]
        precision = 0.25 + jnp.sum(mine, axis=0)
        loc = jnp.sum(jnp.where(mine, data["x"][:, None], 0.0), axis=0) / precision
        miss("mu", loc, precision**-0.5, shift=0.2, stretch=1.1)

    def initial(self, data, latents, model):
        numpyro.sample("mu", dist.Normal(jnp.array([-0.3, 0.3]), 2.0))


def flat_labels(data, latents, model):
    logits = -0.2 * (data["x"][:, None] - latents["mu"]) ** 2
    numpyro.sample("c", dist.Categorical(logits=logits))


def test_evidence_is_unbiased_after_every_block_of_a_mixture_weighed_by_component(every_block):
    x = np.array([-1.0, 0.5, 2.0], np.float32)
    blocks = [
        pg.Block("mu", proposal=Means(), assigned_by="c"),
        pg.Block("c", proposal=flat_labels, move=pg.Metropolis()),
    ]
    apg = pg.APG(pair, data={"x": "points"}, blocks=blocks)
    estimates = every_block(apg, {"x": x}, log_evidence, num_runs=NUM_RUNS, num_sweeps=2, num_particles=3)
    assert_unbiased(estimates, pair_posterior(x).log_evidence)


def truncated(x, low):
    """z ~ N(0, 1) above `low`: particles below have density zero."""
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    numpyro.factor("above", jnp.where(z > low, 0.0, -jnp.inf))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


def near_z(data, latents, model):
    precision = 1.0 + jnp.sum(data.mask["points"])
    loc = jnp.sum(jnp.where(data.mask["points"], data["x"], 0.0)) / precision
    miss("z", loc, precision**-0.5, shift=-0.3, stretch=1.1)


@pytest.mark.parametrize("below", [0.0, 1.0])
def test_evidence_is_unbiased_where_some_particles_start_with_density_zero(every_block, below):
    """Each of 3 particles may miss the support; populations in which all do have evidence zero."""
    blocks = [pg.Block("z", proposal=near_z, move=pg.Metropolis())]
    apg = pg.APG(truncated, data={"x": "points"}, blocks=blocks, ess_threshold=below)
    instance = {"x": X, "low": np.float32(0.6)}

    def report(population):
        return population.total_log_evidence, population.degenerate

    log_estimates, degenerate = every_block(apg, instance, report, num_runs=NUM_RUNS, num_sweeps=2, num_particles=3)
    precision, total = 1.0 + len(X), X.sum(dtype=np.float64)
    whole = stats.multivariate_normal(np.zeros(2), np.eye(2) + 1.0).logpdf(X)
    assert_unbiased(log_estimates, whole + stats.norm(total / precision, precision**-0.5).logsf(0.6))
    assert 0.05 < degenerate[0].mean() < 0.5
    np.testing.assert_array_equal(degenerate, np.isneginf(log_estimates))


def test_a_particle_of_density_zero_never_regains_weight_although_a_move_revives_its_state(every_block):
    blocks = [pg.Block("z", proposal=near_z, move=pg.Metropolis()), pg.Block("z", proposal=near_z, move=pg.Reweight())]
    apg = pg.APG(truncated, data={"x": "points"}, blocks=blocks, ess_threshold=0.0)
    with pytest.warns(UserWarning, match="block 'z'.*use move=Metropolis"):
        apg.check({"x": X, "low": np.float32(0.6)})

    def report(population):
        dead = population.log_weights == -jnp.inf
        revived = dead & (population.particles.log_probs["above"] == 0.0)
        return dead, revived, population.degenerate

    dead, revived, degenerate = every_block(
        apg, {"x": X, "low": np.float32(0.6)}, report, num_runs=500, num_sweeps=2, num_particles=3
    )
    alive = ~degenerate[-1]
    assert not np.any(revived[0])
    assert np.any(revived[1, alive])
    assert np.all(dead[1:, alive] >= dead[:-1, alive])


def test_errors_of_weighted_means_fall_as_one_over_the_root_of_the_number_of_particles(every_block):
    blocks = [pg.Block("a", proposal=near_a), pg.Block("b", proposal=near_b)]
    apg = pg.APG(chain, data={"x": "points"}, blocks=blocks)
    mean = chain_posterior(X)[0]

    def report(population):
        weights = normalise(population.log_weights)
        return jnp.stack([weights @ population.particles.latents[name] for name in ("a", "b")])

    def errors(num_particles: int) -> np.ndarray:
        """Errors of both means after the last block, with axes (run, mean)."""
        means = every_block(apg, {"x": X}, report, num_runs=1000, num_sweeps=2, num_particles=num_particles)
        return means[-1] - mean

    few, many = errors(16), errors(256)
    assert_mean(many, np.zeros(2))
    ratio = np.mean(few**2, axis=0) / np.mean(many**2, axis=0)
    relative = [np.std(e**2, axis=0) / np.mean(e**2, axis=0) / np.sqrt(len(e)) for e in (few, many)]
    # Sixteen times the particles have a sixteenth of the squared error, up to a relative term of order 1/16.
    assert np.all(np.abs(np.log(ratio / 16)) < 5 * np.hypot(*relative) + 2 / 16)


def test_evidence_of_one_particle_and_one_point_is_finite_and_unbiased(every_block):
    """The smallest population is weighed but never resampled."""
    blocks = [pg.Block("a", proposal=near_a), pg.Block("b", proposal=near_b)]
    apg = pg.APG(chain, data={"x": "points"}, blocks=blocks)
    estimates = every_block(apg, {"x": X[:1]}, log_evidence, num_runs=NUM_RUNS, num_sweeps=2, num_particles=1)
    assert np.all(np.isfinite(estimates))
    assert_unbiased(estimates, chain_log_evidence(X[:1]))


def test_evidence_of_the_public_posterior_is_that_of_the_algorithm():
    """`Posterior.log_evidence_by_sweep` of many populations is unbiased for every instance and sweep."""
    blocks = [pg.Block("a", proposal=near_a), pg.Block("b", proposal=near_b)]
    apg = pg.APG(chain, data={"x": "points"}, blocks=blocks)
    instances = [{"x": X}, {"x": X[::-1] - 1.0}]
    posterior = apg.sample(jax.random.key(0), instances, num_sweeps=1, num_particles=4, num_populations=5000)
    for estimates, instance in zip(posterior.log_evidence_by_sweep, instances, strict=True):
        assert_unbiased(estimates.T, chain_log_evidence(instance["x"]))


# Every resampler, at every threshold ----------------------------------------------------------------------------------


@cache
def near_chain() -> pg.APG:
    blocks = [pg.Block("a", proposal=near_a), pg.Block("b", proposal=near_b)]
    return pg.APG(chain, data={"x": "points"}, blocks=blocks, example={"x": X})


@pytest.mark.parametrize("below", [0.0, 0.5, 1.0], ids=["never", "below half", "always"])
@pytest.mark.parametrize("scheme", [pg.systematic, pg.stratified, pg.residual, pg.multinomial])
def test_evidence_is_unbiased_for_every_resampler_and_threshold(every_block, scheme, below):
    apg = near_chain().like(replace(near_chain().built, resampler=scheme, ess_threshold=below))
    estimates = every_block(apg, {"x": X}, log_evidence, num_runs=6000, num_sweeps=2, num_particles=3)
    assert_unbiased(estimates, chain_log_evidence(X))


# Plates within plates, both padded ------------------------------------------------------------------------------------


def grouped(x):
    """m ~ N(0, 1), z_g ~ N(m, 1), x_gn ~ N(z_g, 1)."""
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", x.shape[0], dim=-2):
        z = numpyro.sample("z", dist.Normal(m, 1.0))
        with numpyro.plate("points", x.shape[1], dim=-1):
            numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


def near_m(data, latents, model):
    real = data.mask["groups"]
    pulled = jnp.mean(data["x"], axis=1, where=data.mask["points"]) if "z" not in latents else latents["z"][:, 0]
    precision = 1.0 + jnp.sum(real) * (1.0 if "z" in latents else 0.7)
    miss("m", jnp.sum(jnp.where(real, pulled, 0.0)) / precision, precision**-0.5, shift=0.2, stretch=1.1)


def near_z_of_groups(data, latents, model):
    count = jnp.sum(data.mask["points"])
    total = jnp.sum(jnp.where(data.mask["points"], data["x"], 0.0), axis=1, keepdims=True)
    miss("z", (latents["m"] + total) / (1.0 + count), (1.0 + count) ** -0.5, shift=0.15, stretch=1.05)


def test_evidence_is_unbiased_where_two_nested_plates_are_padded():
    x = np.array([[0.4, -0.3], [1.2, 0.9]], np.float32)
    blocks = [pg.Block("m", proposal=near_m), pg.Block("z", proposal=near_z_of_groups)]
    apg = pg.APG(grouped, data={"x": ("groups", "points")}, blocks=blocks)
    sampler = apg.check({"x": x})
    assert sampler.cannot_pad is None
    assert sampler.partitions[1].plates == ("groups",)
    padded = np.pad(x, ((0, 1), (0, 2)), mode="edge")
    mask = {"groups": jnp.arange(3) < 2, "points": jnp.arange(4) < 2}
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], Data({"x": padded}, mask))
    options = {"num_sweeps": 2, "num_particles": 4, "num_populations": 10_000}
    info = jax.jit(lambda: run(sampler, jax.random.split(jax.random.key(0), 1), batch, **options)[1])()
    same_group = np.kron(np.eye(2), np.ones((2, 2)))
    exact = stats.multivariate_normal(np.zeros(4), np.eye(4) + same_group + 1.0).logpdf(x.ravel())
    assert_unbiased(info.log_evidence[:, 0], exact)


# A discrete site of components ------------------------------------------------------------------------------------------


PLACES = np.array([-1.0, 1.0])


def switched(x):
    """s_k ~ Bernoulli(0.3) turns a component by 1.5, c_n uniform, x_n ~ N(place of c_n, 1)."""
    with numpyro.plate("clusters", 2):
        s = numpyro.sample("s", dist.Bernoulli(0.3))
    with numpyro.plate("points", x.shape[0]):
        c = numpyro.sample("c", dist.Categorical(logits=jnp.zeros(2)))
        numpyro.sample("x", dist.Normal((jnp.asarray(PLACES) + 1.5 * s)[c], 1.0), obs=x)


def near_switch(data, latents, model):
    """The conditional, flattened; first the prior, flattened."""
    logits = jnp.full(2, 0.8 * jnp.log(0.3 / 0.7))
    if "c" in latents:
        gain = dist.Normal(jnp.asarray(PLACES) + 1.5, 1.0).log_prob(data["x"][:, None])
        gain -= dist.Normal(jnp.asarray(PLACES), 1.0).log_prob(data["x"][:, None])
        logits += 0.8 * jnp.sum(jnp.where(latents["c"][:, None] == jnp.arange(2), gain, 0.0), axis=0)
    numpyro.sample("s", dist.Bernoulli(logits=logits))


def near_label(data, latents, model):
    places = jnp.asarray(PLACES) + 1.5 * latents["s"]
    numpyro.sample("c", dist.Categorical(logits=0.8 * dist.Normal(places, 1.0).log_prob(data["x"][:, None])))


def test_evidence_is_unbiased_for_a_discrete_site_weighed_by_component(every_block):
    x = np.array([-0.6, 0.3, 2.1], np.float32)
    blocks = [pg.Block("s", proposal=near_switch, assigned_by="c"), pg.Block("c", proposal=near_label)]
    apg = pg.APG(switched, data={"x": "points"}, blocks=blocks)
    estimates = every_block(apg, {"x": x}, log_evidence, num_runs=NUM_RUNS, num_sweeps=2, num_particles=4)
    assert apg.built.partitions[0].plates == ("clusters",)
    states = [np.array(s) for s in np.ndindex(2, 2)]
    likelihood = [np.prod(np.mean(stats.norm(PLACES + 1.5 * s, 1).pdf(x[:, None]), axis=1)) for s in states]
    prior = [np.prod(np.where(s, 0.3, 0.7)) for s in states]
    assert_unbiased(estimates, np.log(np.dot(prior, likelihood)))
