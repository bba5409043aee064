"""Learned proposals that are built from the model."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from scipy import integrate, stats
from tests import oracles
from tests.models import conditional_at, located

import popgibbs as pg
from popgibbs.data import complete
from popgibbs.model import BlockConditional
from popgibbs.proposals.gaussian import Shape

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)


def test_a_shaped_gaussian_is_a_density():
    shape = Shape(*(jnp.array([[value]]) for value in (0.3, -0.4, 0.35, 0.2)))

    def density(at: float) -> float:
        noise, log_slope = shape.invert(jnp.array([[at]]))
        return float(stats.norm.pdf(noise[0, 0]) * np.exp(log_slope[0]))

    grid = np.linspace(-15.0, 20.0, 2001)
    assert abs(integrate.trapezoid([density(at) for at in grid], grid) - 1.0) < 1e-4
    noise = jnp.linspace(-3.0, 3.0, 7)[:, None]
    np.testing.assert_allclose(shape.invert(shape.apply(noise))[0], noise, atol=1e-4)


def groups(y):
    """Rates of groups around a common mean, seen through several observations each."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.LogNormal(-0.5, 0.5))
    with numpyro.plate("groups", y.shape[0], dim=-2):
        alpha = numpyro.sample("alpha", dist.Normal(mu, sigma))
        with numpyro.plate("obs", y.shape[1], dim=-1):
            numpyro.sample("y", dist.Normal(alpha, 1.0), obs=y)


AXES = {"y": ("groups", "obs")}
Y = np.array([[0.4, 1.3, 0.8], [2.2, 1.0, 1.4], [0.3, -0.2, 1.1], [1.9, 2.8, 2.0]], np.float32)


def groups_log_evidence(y: np.ndarray) -> tuple[float, float]:
    """log p(y) and E[μ | y], by quadrature over log σ; given σ everything is Gaussian."""
    num_groups, num_obs = y.shape
    size = num_groups * num_obs
    same_group = np.kron(np.eye(num_groups), np.ones((num_obs, num_obs)))
    grid = np.linspace(-4.0, 3.0, 701)
    log_joint, means = [], []
    for log_sigma in grid:
        within = np.eye(size) + np.exp(2 * log_sigma) * same_group
        total = stats.multivariate_normal(np.zeros(size), within + 4.0)
        log_joint.append(total.logpdf(y.ravel()) + stats.norm(-0.5, 0.5).logpdf(log_sigma))
        means.append(4.0 * np.linalg.solve(within + 4.0, y.ravel()).sum())
    weights = np.exp(np.array(log_joint) - max(log_joint))
    log_evidence = max(log_joint) + np.log(integrate.trapezoid(weights, grid))
    return log_evidence, float(np.sum(weights * means) / np.sum(weights))


@pytest.fixture(scope="module")
def fitted():
    sampler = pg.APG(groups, data=AXES, example={"y": Y})
    return sampler.fit(KEY, num_steps=300, batch_size=32, optimiser=optax.adam(5e-3), progress=False)


@pytest.fixture(scope="module")
def posterior(fitted):
    return fitted.sampler.sample(KEY, [{"y": Y}], num_sweeps=10, num_particles=20, num_populations=100)


def test_a_trained_sampler_gives_the_exact_posterior_and_evidence(posterior):
    log_evidence, mean = groups_log_evidence(Y.astype(np.float64))
    oracles.assert_mean(np.sum(posterior.weights[0] * posterior[0]["mu"], axis=1), mean)
    assert abs(posterior.log_evidence[0] - log_evidence) < 5 * posterior.log_evidence_error[0]


def test_training_brings_the_first_draw_near_the_posterior_and_keeps_sweeps_accepted(posterior):
    assert posterior.ess[0, :, 0, 0].mean() > 8  # of 20; draws from the prior of μ and σ have less than 2
    assert posterior.acceptance[0, :, -1].mean(axis=0).min() > 0.85


def test_draws_are_scored_by_the_density_that_they_come_from(fitted):
    built = fitted.sampler.built
    data = complete({"y": Y}, {"y": ("groups", "obs")})
    latents = {"mu": jnp.float32(0.3), "sigma": jnp.float32(0.8), "alpha": jnp.ones((4, 1))}

    @jax.jit
    def scored():
        found = []
        for index, block in enumerate(built.blocks):
            context = built.context(index, data)
            names = block.sites
            first = BlockConditional(
                context.target,
                context.plan.first_partition,
                names=names,
                given=dict(list(latents.items())[:index]),
                initial=True,
            )
            for conditional in (conditional_at(built, index, data, latents), first):
                bound = block.kernel.bind(KEY, conditional)
                values, log_q = bound.draw()
                found.append((bound.score(values), log_q))
        return found

    for score, log_q in scored():
        np.testing.assert_allclose(score, log_q, rtol=1e-4, atol=1e-4)


def test_padding_changes_neither_draws_nor_weights(fitted):
    """Instances of two sizes are padded to one; alone, neither is."""
    small = {"y": Y[:3, :2]}
    together = fitted.sampler.sample(KEY, [small, {"y": Y}], num_sweeps=0, num_particles=4)
    alone = fitted.sampler.sample(KEY, [small], num_sweeps=0, num_particles=4)
    for name in ("mu", "sigma"):
        np.testing.assert_allclose(together[0][name], alone[0][name], rtol=1e-3)
    np.testing.assert_allclose(together.weights[0], alone.weights[0], rtol=0.02)


def test_a_trained_sampler_is_saved_and_loaded(fitted, tmp_path):
    fitted.sampler.save(tmp_path)
    loaded = pg.APG(groups, data=AXES, example={"y": Y}).load(tmp_path)
    draws = [s.sample(KEY, [{"y": Y}], num_sweeps=0, num_particles=4)[0]["mu"] for s in (fitted.sampler, loaded)]
    np.testing.assert_array_equal(*draws)


def test_without_newton_steps_the_guess_is_the_proposal():
    x = np.array([0.3, 1.9, 1.0], np.float32)
    sampler = pg.APG(located, data={"x": "points"}, blocks=[pg.Block("mu", proposal=pg.Neural(refine=0))], example=x)
    fit = sampler.fit(KEY, num_steps=300, batch_size=32, optimiser=optax.adam(5e-3), progress=False)
    posterior = fit.sampler.sample(KEY, [x], num_sweeps=5, num_particles=10, num_populations=100)
    oracles.assert_mean(np.sum(posterior.weights[0] * posterior[0]["mu"], axis=1), x.sum() / 4)
    assert posterior.acceptance[0, :, 1:].mean() > 0.7
