"""First draws that distinguish exchangeable components have the right evidence when they are shuffled."""

from itertools import permutations, product
from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import gammaln, logsumexp

import popgibbs as pg
from oracles import assert_mean, pair, pair_expectation, pair_posterior
from popgibbs.data import complete
from popgibbs.paper import runs
from popgibbs.paper.gmm import GMM
from popgibbs.proposals import log_average_over_labellings, relabelling
from popgibbs.smc import draw_initial, normalise, score_initial
from popgibbs.statistics import spread_points
from refusals import EXAMPLE, C, build, draws, model, refused

pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
    pytest.mark.filterwarnings("ignore:block .mu.. its elements in the plate:UserWarning"),
]

ESTIMATE = 1  # the sum over labellings is estimated beyond one component


# The density of a shuffled draw -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_density_is_the_average_over_all_labellings(size):
    log_q = jnp.asarray(np.random.default_rng(size).normal(scale=3.0, size=(size, size)), jnp.float32)
    terms = [sum(log_q[m, k] for m, k in enumerate(order)) for order in permutations(range(size))]
    np.testing.assert_allclose(log_average_over_labellings(log_q), logsumexp(terms) - np.log(len(terms)), rtol=1e-5)


def test_the_estimate_for_many_components_divides_by_a_distribution_over_labellings(monkeypatch):
    monkeypatch.setattr(relabelling, "_EXACT_UP_TO", ESTIMATE)
    log_q = jnp.asarray(np.random.default_rng(0).normal(scale=3.0, size=(4, 4)), jnp.float32)
    # r = q / (M! q̂) for each labelling of the same values.
    shares = [
        np.exp(np.trace(log_q[:, order]) - log_average_over_labellings(log_q[:, order])) / factorial(4)
        for order in map(np.array, permutations(range(4)))
    ]
    np.testing.assert_allclose(np.sum(shares), 1.0, rtol=1e-5)


def test_densities_of_zero_leave_the_gradient_finite():
    log_q = jnp.where(jnp.eye(3, dtype=bool), -1.0, -jnp.inf)
    value, gradient = jax.value_and_grad(log_average_over_labellings)(log_q)
    np.testing.assert_allclose(value, -3.0 - np.log(6), rtol=1e-6)
    np.testing.assert_allclose(gradient, np.eye(3), atol=1e-6)


# Evidence and posterior -------------------------------------------------------------------------------------------------


def seeded(scale: float, num: int):
    """Components around randomly drawn points that are far from each other."""

    def initial(data, latents, model):
        seeds = spread_points(numpyro.prng_key(), data["x"][:, None], data.mask["points"], num)[:, 0]
        numpyro.sample("mu", dist.Normal(seeds, scale))

    return initial


def test_evidence_and_means_are_unbiased_where_components_overlap_and_the_sum_is_estimated(every_block, monkeypatch):
    monkeypatch.setattr(relabelling, "_EXACT_UP_TO", ESTIMATE)
    x = np.array([1.5, -0.4, 2.2, 0.3], np.float32)
    mu = pg.Block("mu", proposal=seeded(1.8, 2), move=pg.Metropolis(), exchangeable="clusters")
    apg = pg.APG(pair, data={"x": "points"}, blocks=[mu, pg.Block("c", proposal=pg.Enumerated())])

    def report(population):
        first, second = population.particles.latents["mu"].T
        weights = normalise(population.log_weights)
        return population.total_log_evidence, jnp.stack([weights @ first, weights @ (first * second)])

    log_estimates, means = every_block(apg, {"x": x}, report, num_runs=3000, num_sweeps=1, num_particles=4)
    exact = [
        pair_expectation(x, lambda c, mu, squared: mu[0]),
        pair_expectation(x, lambda c, mu, squared: mu[0] * mu[1]),
    ]
    ratios = np.exp(np.asarray(log_estimates, np.float64) - pair_posterior(x).log_evidence)
    for ratio, mean in zip(ratios, means, strict=True):
        assert_mean(ratio, 1.0)
        assert_mean(ratio[:, None] * mean, np.array(exact))


WIDE, NARROW = 5.0, 0.3
APART = np.array([-5.0, -5.2, 0.1, 0.0, 5.0, 5.3], np.float32)


def trio(x):
    with numpyro.plate("clusters", 3):
        mu = numpyro.sample("mu", dist.Normal(0.0, WIDE))
    with numpyro.plate("points", x.shape[0]):
        c = numpyro.sample("c", dist.Categorical(logits=jnp.zeros(3)))
        numpyro.sample("x", dist.Normal(mu[c], NARROW), obs=x)


def trio_log_evidence(x: np.ndarray) -> float:
    """The evidence by enumeration of the assignments, given which the marginal is normal."""
    ways = [np.equal.outer(c, c) for c in product(range(3), repeat=len(x))]
    marginals = [
        stats.multivariate_normal(np.zeros(len(x)), NARROW**2 * np.eye(len(x)) + WIDE**2 * same).logpdf(x)
        for same in ways
    ]
    return float(logsumexp(marginals) - len(x) * np.log(3))


@pytest.mark.parametrize(
    ("exchangeable", "low"), [("clusters", 0.0), (None, np.log(6))], ids=["shuffled", "one labelling"]
)
def test_a_first_draw_that_reaches_one_labelling_has_a_sixth_of_the_evidence_unless_shuffled(exchangeable, low):
    mu = pg.Block("mu", proposal=seeded(0.4, 3), move=pg.Metropolis(), exchangeable=exchangeable)
    apg = pg.APG(trio, data={"x": "points"}, blocks=[mu, pg.Block("c", proposal=pg.Enumerated())])
    posterior = apg.sample(jax.random.key(0), [APART], num_sweeps=0, num_particles=500, num_populations=8)
    error = posterior.log_evidence_error[0]
    assert error < 0.05
    assert abs(posterior.log_evidence[0] + low - trio_log_evidence(APART)) < 5 * error
    assert not posterior.degenerate.any()


def mixture_log_evidence(x: np.ndarray, c: np.ndarray) -> tuple[float, float]:
    """Evidence of the shipped mixture by enumeration, and the contribution of the labellings of one assignment.

    The marginals of each cluster and axis are those of a normal-gamma prior.
    """

    def of_cluster(members: tuple[int, ...]) -> float:
        values = x[list(members)]
        count, mean = len(values), values.mean(axis=0)
        squares = ((values - mean) ** 2).sum(axis=0) + 0.1 * count * mean**2 / (0.1 + count)
        each = gammaln(2 + count / 2) - gammaln(2) + 2 * np.log(2) - (2 + count / 2) * np.log(2 + squares / 2)
        return float(np.sum(each + 0.5 * np.log(0.1 / (0.1 + count)) - count / 2 * np.log(2 * np.pi)))

    known = {(): 0.0}
    ways, alike = [], []
    for way in product(range(3), repeat=len(x)):
        clusters = [tuple(n for n, k in enumerate(way) if k == cluster) for cluster in range(3)]
        ways.append(sum(known[m] if m in known else known.setdefault(m, of_cluster(m)) for m in clusters))
        alike.append(np.array_equal(np.equal.outer(way, way), np.equal.outer(c, c)))
    log_prior = -len(x) * np.log(3)
    return float(logsumexp(ways) + log_prior), float(logsumexp(np.array(ways)[alike]) + log_prior)


@pytest.fixture(scope="module")
def shipped() -> pg.APG:
    return runs.load(GMM, GMM.shipped / GMM.default)[0]


def test_the_shipped_mixture_has_the_evidence_of_all_labellings(shipped):
    """Seeds reach the labellings of the dominant assignment, and need not reach the few others."""
    c = np.repeat([0, 1, 2], [3, 3, 2])
    noise = np.random.default_rng(0).normal(scale=0.1, size=(len(c), 2))
    x = (np.array([[-8.0, 0.0], [8.0, -1.0], [0.0, 9.0]])[c] + noise).astype(np.float32)
    posterior = shipped.sample(jax.random.key(0), [x], num_sweeps=0, num_particles=1000, num_populations=8)
    of_all, of_one = mixture_log_evidence(x.astype(np.float64), c)
    assert of_all - of_one < 0.1
    allowed = 5 * posterior.log_evidence_error[0]
    assert of_one - allowed < posterior.log_evidence[0] < of_all + allowed


def test_the_score_of_a_shuffled_draw_is_its_log_density_and_draws_reach_every_labelling(shipped, monkeypatch):
    monkeypatch.setattr(relabelling, "_EXACT_UP_TO", ESTIMATE)  # this estimate changes with the labelling
    corners = np.repeat([[-8.0, 0.0], [8.0, -1.0], [0.0, 9.0]], 3, axis=0).astype(np.float32)
    data = complete({"x": corners}, shipped.axes)

    def one(key):
        latents, drawn = draw_initial(key, shipped.built, data)
        return latents["mu"], drawn, score_initial(key, shipped.built, data, latents)

    mu, drawn, scored = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 600))
    np.testing.assert_allclose(scored, drawn, rtol=1e-4, atol=1e-3)
    labellings = np.argsort(np.asarray(mu)[:, :, 0], axis=1)
    for order in permutations(range(3)):
        assert_mean(np.all(labellings == order, axis=1), 1 / 6)


# Refusals ---------------------------------------------------------------------------------------------------------------

INDEPENDENT = dist.Normal(0.0, 1.0).expand([3])
TAU = pg.Block("tau", proposal=pg.Prior())


def mu(proposal, exchangeable="clusters", *sites: str) -> pg.Block:
    return pg.Block(*(sites or ("mu",)), proposal=proposal, exchangeable=exchangeable)


def about_each_other(data, latents, model):
    numpyro.sample("mu", Linked())


class Linked(dist.Distribution):
    """Normal components whose log-probability changes with their neighbour's value."""

    support = dist.constraints.real

    def __init__(self):
        super().__init__(batch_shape=(3,))

    def sample(self, key, sample_shape=()):
        return jax.random.normal(key, (*sample_shape, 3))

    def log_prob(self, value):
        return dist.Normal(0.5 * jnp.roll(value, 1, axis=-1), 1.0).log_prob(value)


def test_a_plate_that_cannot_be_shuffled_is_refused():
    independent = draws(mu=INDEPENDENT)
    refused(
        "exchangeable='cluster' is not a plate of the model; its plates are", model, TAU, mu(independent, "cluster"), C
    )
    refused("exchangeable='points' is a plate of the data", model, TAU, mu(independent, "points"), C)
    both = draws(tau=dist.Gamma(1.0, 1.0), mu=INDEPENDENT)
    refused(r"\['tau'\] are not in it", model, mu(both, "clusters", "tau", "mu"), C)
    refused("Prior draws all components alike", model, TAU, mu(pg.Prior()), C)
    refused("earlier blocks draw its sites", model, TAU, pg.Block("mu", proposal=independent), mu(independent), C)


def test_a_first_draw_whose_density_does_not_split_into_components_is_refused():
    refused("the log-probability of a component changes with the values of others", model, TAU, mu(about_each_other), C)
    refused("'mu' has batch shape", model, TAU, mu(draws(mu=INDEPENDENT.to_event(1))), C)


def scaled(x):
    with numpyro.plate("clusters", 3):
        tau = numpyro.sample("tau", dist.LogNormal(0.0, 1.0))
        numpyro.sample("mu", dist.Normal(0.0, tau))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(0.0, 1.0), obs=x)


def test_components_are_shuffled_when_the_first_of_their_sites_are_drawn():
    refused(r"an earlier block draws \['tau'\] of that plate", scaled, TAU, mu(draws(mu=INDEPENDENT)))


def test_a_shuffled_draw_has_its_average_density_where_components_overlap():
    proposed, prior = dist.Normal(jnp.array([-1.0, 0.0, 2.0]), 1.0), dist.LogNormal(0.0, 1.0)
    apg = build(scaled, mu(draws(mu=proposed)), TAU)
    data = complete(EXAMPLE, apg.axes)
    latents, log_q = jax.jit(lambda key: draw_initial(key, apg.built, data))(jax.random.key(0))
    labellings = [proposed.log_prob(latents["mu"][np.array(order)]).sum() for order in permutations(range(3))]
    np.testing.assert_allclose(log_q, logsumexp(labellings) - np.log(6) + prior.log_prob(latents["tau"]).sum(), rtol=1e-5)


@pytest.mark.parametrize("case", ["narrow first", "narrow last", "broad"])
def test_the_estimate_counts_every_labelling_once_where_places_reach_few_values(case, monkeypatch):
    """Σ over labellings with q > 0 of q(z) / (M! q̂(z)) is one, where q̂ is the estimated density of a shuffled draw."""
    monkeypatch.setattr(relabelling, "_EXACT_UP_TO", 2)
    log_q = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    if case != "broad":
        place = 0 if case == "narrow first" else 3
        log_q[place] = np.where(np.arange(4) == 2, 0.0, -1e4)
    total = 0.0
    for order in permutations(range(4)):
        shuffled = log_q[:, order]
        log_density = np.trace(shuffled)
        if log_density > -1e3:
            estimate = float(relabelling.log_average_over_labellings(jnp.asarray(shuffled)))
            total += np.exp(log_density - estimate) / 24
    np.testing.assert_allclose(total, 1.0, rtol=1e-4)
