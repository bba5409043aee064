"""Blocks that hold standardised values: they leave the posterior as it is, whatever else a sweep does."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from tests import oracles
from tests.models import conditional_at

import popgibbs as pg
from popgibbs.data import complete
from popgibbs.model import inspect, rescale, standardise

KEY = jax.random.key(0)
X = np.array([2.0, 0.4, -0.7], np.float32)


def assert_moments(draws: Any, exact: np.ndarray) -> None:
    """The first two moments, from populations on the leading axis and particles on the next."""
    draws = np.asarray(draws, np.float64)
    oracles.assert_mean(draws.mean(axis=1), exact[0])
    oracles.assert_mean((draws**2).mean(axis=1), exact[1])


@pytest.mark.parametrize("bridged", [True, False])
def test_posterior_and_evidence_where_only_non_centred_blocks_move_the_hyperparameters(bridged):
    exact = oracles.hierarchy_posterior(X)
    # A proposal that is passed, rather than left to the sampler, means a first draw without a bridge.
    alpha = pg.Block("alpha") if bridged else pg.Block("alpha", proposal=pg.Laplace(), move=pg.Metropolis())
    blocks = [pg.NonCentredBlock("mu"), pg.NonCentredBlock("sigma", holding=["alpha"]), alpha]
    sampler = pg.APG(oracles.hierarchy, data={"x": "groups"}, blocks=blocks, example=X)
    assert (sampler.built.bridge is not None) == bridged
    assert [block.name for block in sampler.blocks[:2]] == ["mu | standardised alpha", "sigma | standardised alpha"]
    posterior = sampler.sample(KEY, [X], num_sweeps=15, num_particles=20, num_populations=300)
    assert posterior.acceptance[0, :, -1].mean(axis=0).min() > 0.5
    assert_moments(posterior[0]["mu"], exact.mu)
    assert_moments(np.log(posterior[0]["sigma"]), exact.log_sigma)
    assert_moments(posterior[0]["alpha"], exact.alpha)
    assert abs(posterior.log_evidence[0] - exact.log_evidence) < 5 * posterior.log_evidence_error[0]


FAMILIES = {
    "normal": lambda loc, scale: dist.Normal(loc, scale),
    "student": lambda loc, scale: dist.StudentT(4.0, loc, scale),
    "gumbel": lambda loc, scale: dist.Gumbel(loc, scale),
    "vector": lambda loc, scale: dist.Logistic(jnp.stack([loc, 2 * loc]), scale).to_event(1),
    "expanded": lambda loc, scale: dist.Cauchy(loc, scale).expand([2]).to_event(1),
    "log-normal": lambda loc, scale: dist.LogNormal(loc, scale),
    "half-normal": lambda loc, scale: dist.HalfNormal(scale),
    "gamma": lambda loc, scale: dist.Gamma(2.5, 1 / scale),
    "inverse gamma": lambda loc, scale: dist.InverseGamma(2.5, scale),
    "affine": lambda loc, scale: dist.TransformedDistribution(
        dist.Beta(2.0, 3.0), dist.transforms.AffineTransform(loc, scale)
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_standardised_values_have_a_density_that_does_not_depend_on_location_and_scale(family):
    """log p(α | ψ) + log |∂α/∂η| at α = T_ψ(η) is the same number for every ψ, by element; T_ψ⁻¹ T_ψ is the identity."""

    def model(x):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("groups", x.shape[0]):
            numpyro.sample("alpha", FAMILIES[family](loc, scale))

    def program() -> None:
        model(X)

    (site,) = [site for site in inspect(model, {"x": X}) if site.name == "alpha"]
    assert site.scaled_by == ({"scale"} if family in ("half-normal", "gamma", "inverse gamma") else {"loc", "scale"})
    start = {"loc": jnp.float32(0.3), "scale": jnp.float32(0.8)}
    with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.substitute(data=start), numpyro.handlers.trace() as trace:
        program()
    alpha = trace["alpha"]["value"]
    eta = standardise(program, {**start, "alpha": alpha}, ("alpha",))
    densities = []
    for loc, scale in ((0.3, 0.8), (-0.5, 0.1), (1.0, 2.0)):
        values = {"loc": jnp.float32(loc), "scale": jnp.float32(scale)}
        moved, stretch = rescale(program, values, eta)
        with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as trace:
            numpyro.handlers.substitute(program, data=values)()
        log_prob = trace["alpha"]["fn"].log_prob(moved["alpha"])
        assert stretch["alpha"].shape == log_prob.shape == (3,)
        densities.append(log_prob + stretch["alpha"])
        back = standardise(program, {**values, **moved}, ("alpha",))
        np.testing.assert_allclose(back["alpha"], eta["alpha"], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(rescale(program, start, eta)[0]["alpha"], alpha, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(densities[1:], [densities[0]] * 2, rtol=1e-3, atol=1e-3)


def nested(x):
    """A scale and a location per outer group; every group value is a vector, and the data are ragged."""
    top = numpyro.sample("top", dist.Normal(0.0, 1.0))
    with numpyro.plate("outer", 2):
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        mu = numpyro.sample("mu", dist.Normal(top, 0.7))
    with numpyro.plate("groups", x.shape[0]), numpyro.plate("outer", 2):
        alpha = numpyro.sample("alpha", dist.Normal(mu[:, None, None], sigma[:, None, None]).expand([2, 1, 2]).to_event(1))
        numpyro.sample("x", dist.Normal(alpha, 1.0).to_event(1), obs=jnp.swapaxes(x, 0, 1))


def ragged(num: int, size: int) -> np.ndarray:
    return np.random.default_rng(num).normal(0, 2, (num, 2, 2)).astype(np.float32)
