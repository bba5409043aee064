"""Impossible states: weights stay proper, and biased ones are detected and reported."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import popgibbs as pg
from oracles import assert_mean

pytestmark = pytest.mark.usefixtures("quick_compilation")

X = np.array([0.3, 1.2], np.float32)
LEAST = 0.6


def above(x):
    """z ~ N(0, 1) above `LEAST`, x_n ~ N(z, 1)."""
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    numpyro.factor("above", jnp.where(z > LEAST, 0.0, -jnp.inf))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


def above_log_evidence() -> float:
    precision = 1.0 + len(X)
    whole = stats.multivariate_normal(np.zeros(2), np.eye(2) + 1.0).logpdf(X)
    return whole + stats.norm(X.sum() / precision, precision**-0.5).logsf(LEAST)


class Around(eqx.Module):
    """Near the conditional, with 10% to 50% of its mass below the least possible value; the first draw is above it."""

    def __call__(self, data, latents, model):
        numpyro.sample("z", dist.Normal(0.7, 0.6))

    def initial(self, data, latents, model):
        numpyro.sample("z", dist.TruncatedNormal(0.7, 0.6, low=LEAST))


def ratios(apg: pg.APG, log_evidence: float, num_sweeps: int = 3) -> np.ndarray:
    """Ẑ / Z by population and sweep."""
    posterior = apg.sample(jax.random.key(0), [{"x": X}], num_sweeps=num_sweeps, num_particles=10, num_populations=2000)
    return np.exp(posterior.log_evidence_by_sweep[0].astype(np.float64) - log_evidence)


BIASED = r"block 'z': its proposal can draw values of probability zero.*biased"


def test_weighing_is_biased_by_the_mass_outside_the_support_and_warns():
    """E[v] = Q(support): the evidence loses that factor in every sweep."""
    blocks = [pg.Block("z", proposal=Around(), move=pg.Reweight())]
    with pytest.warns(UserWarning, match=BIASED + r".*use move=Metropolis"):
        apg = pg.APG(above, data={"x": "points"}, blocks=blocks, example={"x": X})
    with pytest.warns(UserWarning, match=r"block 'z': a weighed proposal had probability zero.*Metropolis"):
        posterior = apg.sample(jax.random.key(0), [{"x": X}], num_sweeps=2, num_particles=30, num_populations=2000)
    found = np.exp(posterior.log_evidence_by_sweep[0].astype(np.float64) - above_log_evidence())
    assert_mean(found, stats.norm(0.7, 0.6).sf(LEAST) ** np.arange(3))
    assert posterior.biased_blocks == ["z"]
    assert not posterior.impossible[:, :, 0].any()  # the first draw only needs to cover the posterior
    assert posterior.impossible[:, :, 1:].all(axis=2).mean() > 0.9
    with pytest.warns(UserWarning, match=r"block 'z': a weighed proposal had probability zero"):
        posterior.extend(jax.random.key(0), 1)


def test_such_a_block_uses_metropolis_by_default():
    with pytest.warns(UserWarning, match=BIASED + r".*its move is Metropolis"):
        apg = pg.APG(above, data={"x": "points"}, blocks=[pg.Block("z", proposal=Around())], example={"x": X})
    assert isinstance(apg.built.blocks[0].move, pg.Metropolis)
    assert_mean(ratios(apg, above_log_evidence()), 1.0)


SWITCH = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])


def switched(x):
    """s ~ Bernoulli, k | s ~ Categorical, where one state is impossible under s = 0."""
    s = numpyro.sample("s", dist.Categorical(probs=jnp.array([0.5, 0.5])))
    k = numpyro.sample("k", dist.Categorical(logits=jnp.log(jnp.asarray(SWITCH, jnp.float32))[s]))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(k * 1.0, 1.0), obs=x)


def any_s(data, latents, model):
    numpyro.sample("s", dist.Categorical(logits=jnp.array([0.0, 0.3])))


def any_k(data, latents, model):
    numpyro.sample("k", dist.Categorical(logits=jnp.array([0.0, 0.3, -0.5])))


def switched_log_evidence() -> float:
    likelihood = [np.prod(stats.norm(k, 1).pdf(X)) for k in range(3)]
    return float(np.log(np.sum(0.5 * SWITCH * likelihood)))


def test_an_impossible_discrete_state_is_found_at_build_and_the_evidence_stays_unbiased():
    blocks = [pg.Block("s", proposal=any_s), pg.Block("k", proposal=any_k)]
    with (
        pytest.warns(UserWarning, match=r"block 's'.*its move is Metropolis"),
        pytest.warns(UserWarning, match=r"block 'k'.*its move is Metropolis"),
    ):
        apg = pg.APG(switched, data={"x": "points"}, blocks=blocks, example={"x": X})
    assert_mean(ratios(apg, switched_log_evidence()), 1.0)


def test_enumeration_never_draws_impossible_states():
    """It is weighed without a warning."""
    blocks = [pg.Block("s", proposal=any_s, move=pg.Metropolis()), pg.Block("k", proposal=pg.Enumerated())]
    apg = pg.APG(switched, data={"x": "points"}, blocks=blocks, example={"x": X})
    assert isinstance(apg.built.blocks[1].move, pg.Reweight)
    assert_mean(ratios(apg, switched_log_evidence()), 1.0)


def scaled(x):
    """a ~ N(0, 1), counted twice."""
    with numpyro.handlers.scale(scale=2.0):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(a, 1.0), obs=x)


def test_a_prior_is_scored_by_the_density_of_its_draws_even_if_the_model_scales_it():
    """p(a)² has the mass 1/√(4π) and is the density of N(0, 1/√2)."""
    apg = pg.APG(
        scaled, data={"x": "points"}, blocks=[pg.Block("a", proposal=pg.Prior(), move=pg.Metropolis())], example={"x": X}
    )
    marginal = stats.multivariate_normal(np.zeros(2), np.eye(2) + 0.5).logpdf(X)
    assert_mean(ratios(apg, marginal - 0.5 * np.log(4 * np.pi), num_sweeps=1), 1.0)


def partly_seen(x, seen):
    """a ~ N(0, 1), x_n ~ N(a, 1), of which some are missing."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(a, 1.0), obs=x, obs_mask=seen)


def near_a(data, latents, model):
    numpyro.sample("a", dist.Normal(0.1, 0.65))


def near_missing(data, latents, model):
    numpyro.sample("x_unobserved", dist.Normal(latents["a"] + 0 * data["x"], 1.05))


@pytest.mark.parametrize("proposal", [pg.Prior(), near_missing], ids=["prior", "a user's program"])
def test_missing_observations_change_nothing_under_any_proposal(proposal):
    """`obs_mask` makes a latent site of all points; the evidence is that of the observed points."""
    instance = {"x": np.array([0.4, 9.0, -0.3], np.float32), "seen": np.array([True, False, True])}
    blocks = [pg.Block("a", proposal=near_a), pg.Block("x_unobserved", proposal=proposal)]
    apg = pg.APG(partly_seen, data={"x": "points", "seen": "points"}, blocks=blocks)
    posterior = apg.sample(jax.random.key(0), [instance], num_sweeps=1, num_particles=4, num_populations=4000)
    seen = instance["x"][instance["seen"]]
    exact = stats.multivariate_normal(np.zeros(2), np.eye(2) + 1).logpdf(seen)
    found = np.exp(posterior.log_evidence_by_sweep[0].astype(np.float64) - exact)
    assert_mean(found, 1.0)
    means = np.sum(posterior.weights[0] * posterior[0]["a"], axis=-1)
    assert_mean(found[:, -1] * means, seen.sum() / 3)


def masked_latent(x, seen):
    with numpyro.plate("points", x.shape[0]), numpyro.handlers.mask(mask=seen):
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("x", dist.Normal(2.0 * z, 1.0), obs=x)


def test_a_latent_site_inside_a_mask_is_refused():
    with pytest.raises(ValueError, match=r"latent site 'z' is inside a mask.*sample it outside"):
        pg.APG(
            masked_latent,
            data={"x": "points", "seen": "points"},
            blocks=[pg.Block("z", proposal=pg.Enumerated())],
            example={"x": X, "seen": np.array([True, False])},
        )


def masked_by_name(x, seen):
    with numpyro.plate("points", x.shape[0]), numpyro.handlers.mask(mask=seen):
        z = numpyro.sample("z_unobserved", dist.Bernoulli(0.5))
        numpyro.sample("x", dist.Normal(2.0 * z, 1.0), obs=x)


def test_the_name_alone_does_not_make_a_masked_latent_a_missing_observation():
    with pytest.raises(ValueError, match="latent site 'z_unobserved' is inside a mask"):
        pg.APG(
            masked_by_name,
            data={"x": "points", "seen": "points"},
            blocks=[pg.Block("z_unobserved", proposal=pg.Enumerated())],
            example={"x": X, "seen": np.array([True, False])},
        )


def gated(x):
    """If z is negative, no value of c is possible."""
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    c = numpyro.sample("c", dist.Bernoulli(0.5))
    numpyro.factor("gate", jnp.where(z > 0, 0.0, -jnp.inf) + 0.0 * c)
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(z + c, 1.0), obs=x)


def test_a_dead_particle_does_not_make_its_population_fail():
    blocks = [pg.Block("z", proposal=pg.Prior(), move=pg.Metropolis()), pg.Block("c", proposal=pg.Enumerated())]
    apg = pg.APG(gated, data={"x": "points"}, blocks=blocks, example={"x": X})
    posterior = apg.sample(jax.random.key(0), [{"x": X}], num_sweeps=1, num_particles=40, num_populations=200)
    assert not posterior.degenerate.any()


def masked_proposal(data, latents, model):
    numpyro.sample("z", dist.Normal(0.7, 0.6).mask(data["x"][0] > 0))


def scaled_proposal(data, latents, model):
    with numpyro.handlers.scale(scale=2.0):
        numpyro.sample("z", dist.Normal(0.7, 0.6))


@pytest.mark.parametrize("proposal", [masked_proposal, scaled_proposal])
def test_a_proposal_whose_density_is_not_that_of_its_draws_is_refused(proposal):
    with pytest.raises(ValueError, match=r"block 'z'.*masks or scales the density of 'z'"):
        pg.APG(above, data={"x": "points"}, blocks=[pg.Block("z", proposal=proposal)], example={"x": X})
