"""Counts without bound are drawn from nearly their own conditional, and the posterior and the evidence are exact."""

from collections.abc import Callable, Iterator
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
from popgibbs.data import complete
from popgibbs.proposals.counts import Cells

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)


@pytest.fixture
def full_compilation(quick_compilation: None) -> Iterator[None]:
    """Without optimisation XLA computes an acceptance twice, with different rounding errors, which large counts show."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


def thinned(rate: float, share: float) -> Callable[[Any], None]:
    """n ~ Poisson(rate), y | n ~ Binomial(n, share): n − y | y ~ Poisson(rate (1 − share)), y ~ Poisson(rate · share)."""

    def model(y):
        with numpyro.plate("points", y.shape[0]):
            n = numpyro.sample("n", dist.Poisson(rate))
            numpyro.sample("y", dist.Binomial(n, share), obs=y)

    return model


def waited(y):
    """A wide conditional with its mode at the edge of the support: n ~ Geometric(0.001), and y says nothing about n."""
    with numpyro.plate("points", y.shape[0]):
        n = numpyro.sample("n", dist.Geometric(0.001))
        numpyro.sample("y", dist.Normal(0.0 * n, 1.0), obs=y)


def overspread(y):
    """Data far from the prior: n ~ NegativeBinomial of mean 10, y ~ Normal(n, 20)."""
    with numpyro.plate("points", y.shape[0]):
        n = numpyro.sample("n", dist.NegativeBinomial2(10.0, 2.0))
        numpyro.sample("y", dist.Normal(n, 20.0), obs=y)


def from_total(y):
    """Both ends of the support are near: n ~ Binomial(total, 0.999), y ~ Normal(n, 200)."""
    total = jnp.max(y).astype(int)  # not known while the model is traced
    with numpyro.plate("points", y.shape[0]):
        n = numpyro.sample("n", dist.Binomial(total, 0.999))
        numpyro.sample("y", dist.Normal(n, 200.0), obs=y)


NARROW, WIDE = 0.021, 0.03  # total variation: 0.02 of the draws are wide; a density that is linear between nodes is near


@pytest.mark.parametrize(
    ("model", "y", "prior", "likelihood", "gap"),
    [
        (thinned(30.0, 0.4), 9, stats.poisson(30), lambda n: stats.binom(n, 0.4).logpmf(9), NARROW),
        (thinned(30.0, 0.4), 80, stats.poisson(30), lambda n: stats.binom(n, 0.4).logpmf(80), NARROW),
        (thinned(5000.0, 0.4), 1900, stats.poisson(5000), lambda n: stats.binom(n, 0.4).logpmf(1900), WIDE),
        (waited, 0.0, stats.geom(0.001, loc=-1), lambda n: np.zeros(len(n)), WIDE),
        (overspread, 300.0, stats.nbinom(2, 1 / 6), lambda n: stats.norm(n, 20).logpdf(300), WIDE),
        (from_total, 3000.0, stats.binom(3000, 0.999), lambda n: stats.norm(n, 200).logpdf(3000), NARROW),
    ],
    ids=["narrow", "far from the prior", "large", "edge", "tail of the prior", "two bounds"],
)
def test_draws_come_from_nearly_the_conditional(model, y, prior, likelihood, gap):
    """Σ_n q(n) = 1 over the support, and ½ Σ_n |q(n) − p(n | y)| is small; draws have the probabilities q."""
    data = {"y": np.array([y, y], np.float32 if isinstance(y, float) else np.int32)}
    block = pg.Block("n", proposal=pg.Counts(), move=pg.Metropolis())
    built = pg.APG(model, data={"y": "points"}, blocks=[block], example=data).built
    context = built.context(0, complete(data, {"y": ("points",)}))
    numbers = np.arange(15000)

    def bound(key: Any) -> Any:
        conditional = built.blocks[0].conditional(context, {"n": jnp.zeros(2, int)})
        return built.blocks[0].kernel.bind(key, conditional)

    q = np.exp(jax.vmap(lambda n: bound(KEY).score({"n": jnp.stack([n, n])})[0])(jnp.asarray(numbers)), dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = normalised(np.nan_to_num(prior.logpmf(numbers) + likelihood(numbers), nan=-np.inf))
    rest = 0.02  # of the wide share, beyond the numbers that are summed
    assert 1 - rest < q.sum() < 1 + 1e-4
    assert 0.5 * np.abs(q - exact).sum() < gap
    drawn = jax.jit(jax.vmap(lambda key: bound(key).draw()[0]["n"][0]))(jax.random.split(KEY, 20000))
    ends = numbers[np.searchsorted(np.cumsum(exact), [0.05, 0.25, 0.5, 0.75, 0.95])]
    assert_mean(np.asarray(drawn)[:, None] <= ends, np.cumsum(q)[ends])


def test_numbers_inside_cells_have_a_linear_density():
    """Cells of 1, 2, 7 and 0 numbers: the masses sum the density, and draws have it."""
    begin, size = np.array([-3, -2, 0, 7]), np.array([1, 2, 7, 0])
    cells = Cells(*map(jnp.asarray, (begin, size, np.array([0.2, 0.1, 0.3, 0.5]), np.array([0.1, 0.3, 0.0, 0.5]))))
    numbers = np.arange(-4, 9)
    density = np.array([float(cells.density(jnp.asarray(n))) for n in numbers])
    expected = [0, 0.2, 0.1, 0.2, *np.linspace(0.3, 0, 8), 0]
    np.testing.assert_allclose(density, expected, atol=1e-6)
    np.testing.assert_allclose(cells.mass, [0.2, 0.3, 1.2, 0.0], atol=1e-6)
    drawn = jax.vmap(cells.draw)(jax.random.split(KEY, 50000))
    assert_mean(np.asarray(drawn)[:, None] == numbers, density / density.sum())


@pytest.mark.usefixtures("full_compilation")
@pytest.mark.parametrize(("rate", "share", "y"), [(12.0, 0.4, [3, 7]), (5000.0, 0.4, [1900, 2100])])
def test_evidence_is_unbiased_and_thinned_counts_have_their_closed_form(rate, share, y):
    sampler = pg.APG(thinned(rate, share), data={"y": "points"}, example={"y": np.array(y)})
    assert isinstance(sampler.blocks[0].proposal, pg.Counts)
    assert isinstance(sampler.blocks[0].move, pg.Metropolis)
    posterior = sampler.sample(KEY, [{"y": np.array(y)}], num_sweeps=2, num_particles=3, num_populations=3000)
    exact = stats.poisson(rate * share).logpmf(y).sum()
    found = np.exp(posterior.log_evidence_by_sweep[0].astype(np.float64) - exact)
    assert_mean(found, 1.0)
    mean = np.sum(posterior.weights[0][..., None] * posterior[0]["n"], axis=1)
    assert_mean(found[:, -1:] * mean, np.array(y) + rate * (1 - share))
    assert np.mean(posterior.acceptance[0]) > 0.95


def test_ragged_counts_are_not_changed_by_padding():
    instances = [{"y": np.array([3, 7, 1])}, {"y": np.array([5])}]
    sampler = pg.APG(thinned(12.0, 0.4), data={"y": "points"}, example=instances[0], sizes={"points": [8]})
    posterior = sampler.sample(KEY, instances, num_sweeps=2, num_particles=3, num_populations=2000)
    for index, instance in enumerate(instances):
        exact = stats.poisson(12 * 0.4).logpmf(instance["y"]).sum()
        found = np.exp(posterior.log_evidence_by_sweep[index].astype(np.float64) - exact)
        assert_mean(found, 1.0)
        mean = np.sum(posterior.weights[index][..., None] * posterior[index]["n"], axis=1)
        assert_mean(found[:, -1:] * mean, instance["y"] + 12 * 0.6)


def chained(y):
    """A count whose support ends at another one: n ~ Poisson(8), z ~ Binomial(n, 0.6), y ~ Binomial(z, 0.5)."""
    n = numpyro.sample("n", dist.Poisson(8.0))
    z = numpyro.sample("z", dist.Binomial(n, 0.6))
    with numpyro.plate("points", y.shape[0]):
        numpyro.sample("y", dist.Binomial(z, 0.5), obs=y)


def test_counts_that_bound_each_other_match_enumeration():
    y = np.array([2, 4])
    sampler = pg.APG(chained, data={"y": "points"}, example={"y": y})
    assert [type(block.proposal) for block in sampler.blocks] == [pg.Counts, pg.Counts]
    posterior = sampler.sample(KEY, [{"y": y}], num_sweeps=10, num_particles=10, num_populations=150)
    n, z = np.meshgrid(np.arange(60), np.arange(60), indexing="ij")
    log_joint = stats.poisson(8).logpmf(n) + stats.binom(n, 0.6).logpmf(z)
    log_joint = log_joint + sum(stats.binom(z, 0.5).logpmf(value) for value in y)
    share = normalised(np.where(z <= n, log_joint, -np.inf))
    means = [np.mean(posterior[0][name], axis=1) for name in ("n", "z")]
    assert_mean(np.stack(means, axis=1), [np.sum(share * n), np.sum(share * z)])
    exact = logsumexp(np.where(z <= n, log_joint, -np.inf))
    assert abs(posterior.log_evidence[0] - exact) < 5 * posterior.log_evidence_error[0]


def surveyed(y):
    """An N-mixture model (Royle, 2004): animals at each site are counted in several visits, and some are missed."""
    rate = numpyro.sample("rate", dist.Gamma(4.0, 0.5))
    seen = numpyro.sample("seen", dist.Beta(2.0, 2.0))
    with numpyro.plate("places", y.shape[0]):
        n = numpyro.sample("n", dist.Poisson(rate))
        numpyro.sample("y", dist.Binomial(n[:, None], seen).to_event(1), obs=y)


def test_an_n_mixture_model_matches_quadrature():
    y = np.array([[4, 6], [7, 5], [2, 3]])
    sampler = pg.APG(surveyed, data={"y": ("places", None)}, example={"y": y})
    assert sampler.describe().blocks[2].proposal == "integers around the mode"
    assert sampler.describe().blocks[2].weight == "by places"
    posterior = sampler.sample(KEY, [{"y": y}], num_sweeps=10, num_particles=10, num_populations=50)

    rate, seen, n = (np.linspace(0.1, 40, 250)[:, None, None], np.linspace(0.01, 0.99, 99)[:, None], np.arange(120))
    log_joint = stats.gamma(4, scale=2).logpdf(rate[..., 0]) + stats.beta(2, 2).logpdf(seen[..., 0])
    means = []
    for counted in y:
        by_n = stats.poisson(rate).logpmf(n) + sum(stats.binom(n, seen).logpmf(value) for value in counted)
        log_joint = log_joint + logsumexp(by_n, axis=-1)
        means.append(np.sum(np.exp(by_n - logsumexp(by_n, axis=-1, keepdims=True)) * n, axis=-1))
    share = normalised(log_joint)
    exact = [np.sum(share * rate[..., 0]), np.sum(share * seen[..., 0]), *(np.sum(share * mean) for mean in means)]
    draws = posterior[0]
    found = [draws["rate"].mean(axis=1), draws["seen"].mean(axis=1), *np.moveaxis(draws["n"].mean(axis=1), -1, 0)]
    assert_mean(np.stack(found, axis=1), exact)
    log_evidence = logsumexp(log_joint) + np.log((39.9 / 249) * 0.01)
    assert abs(posterior.log_evidence[0] - log_evidence) < 5 * posterior.log_evidence_error[0] + 1e-3


class Births(pg.StateSpaceModel):
    """z_1 ~ Poisson(4), z_t ~ Poisson(1 + 0.8 z_{t−1}), x_t ~ Normal(z_t, 2)."""

    state, observed = "z", "x"

    def globals(self):
        return ()

    def initial(self, globals):
        return dist.Poisson(4.0)

    def transition(self, previous, globals):
        return dist.Poisson(1.0 + 0.8 * previous)

    def emission(self, state, globals):
        return dist.Normal(1.0 * state, 2.0)


def test_a_sequence_of_counts_has_the_evidence_of_the_forward_recursion():
    x = np.array([3.0, 9.0, 8.0, 2.0], np.float32)
    block = pg.SequenceBlock("z", proposal=pg.Counts(), move=pg.Metropolis())
    sampler = pg.APG(Births(), data={"x": "time"}, blocks=[block], example={"x": x})
    posterior = sampler.sample(KEY, [{"x": x}], num_sweeps=2, num_particles=4, num_populations=3000)
    n = np.arange(80)
    emitted = stats.norm(n, 2).pdf(x[:, None])
    forward = stats.poisson(4).pmf(n) * emitted[0]
    for likelihood in emitted[1:]:
        forward = forward @ stats.poisson(1 + 0.8 * n[:, None]).pmf(n) * likelihood
    assert_mean(np.exp(posterior.log_evidence_by_sweep[0].astype(np.float64) - np.log(forward.sum())), 1.0)


def summed(x):
    """Counts that one observation ties together."""
    with numpyro.plate("points", x.shape[0]):
        n = numpyro.sample("n", dist.Poisson(3.0))
        numpyro.sample("x", dist.Normal(n, 1.0), obs=x)
    numpyro.sample("sum", dist.Normal(jnp.sum(n), 1.0), obs=5.0)


def paired(x):
    n = numpyro.sample("n", dist.Poisson(3.0))
    m = numpyro.sample("m", dist.Geometric(0.2))
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(n + m + mu, 1.0), obs=x)


PROPOSED = {"proposal": pg.Counts(), "move": pg.Metropolis()}


@pytest.mark.parametrize(
    ("model", "blocks", "message"),
    [
        (paired, [pg.Block("n", "m", **PROPOSED), pg.Block("mu")], r"block 'n,m': Counts updates one site; give each"),
        (paired, [pg.Block("n"), pg.Block("m"), pg.Block("mu", **PROPOSED)], r"block 'mu': Counts needs a discrete site"),
    ],
    ids=["two sites", "continuous"],
)
def test_what_counts_cannot_draw_is_refused(model, blocks, message):
    with pytest.raises(ValueError, match=message):
        pg.APG(model, data={"x": "points"}, blocks=blocks, example={"x": np.zeros(3, np.float32)})


@pytest.mark.filterwarnings("ignore:block 'n'. its elements in the plate")
def test_counts_that_depend_on_each_other_are_drawn_from_the_prior_or_refused():
    x = np.zeros(3, np.float32)
    with pytest.warns(UserWarning, match=r"block 'n': \['n'\] are counts without bound, of which several depend"):
        sampler = pg.APG(summed, example={"x": x}, data={"x": "points"})
    assert isinstance(sampler.blocks[0].proposal, pg.Prior)
    with pytest.raises(
        ValueError, match=r"block 'n': Counts draws one integer in each element, but 'n' has several.*Prior\(\)"
    ):
        pg.APG(summed, example={"x": x}, data={"x": "points"}, blocks=[pg.Block("n", **PROPOSED)])
