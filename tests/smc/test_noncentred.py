"""Blocks that hold standardised values: they leave the posterior as it is, whatever else a sweep does."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from tests import oracles
from tests.models import conditional_at
from tests.refusals import refused

import popgibbs as pg
from popgibbs.data import Data, complete
from popgibbs.model import Particle, inspect, rescale, standardise
from popgibbs.moves import MoveKeys
from popgibbs.training import accumulate

pytestmark = pytest.mark.usefixtures("quick_compilation")

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
    blocks = [pg.NonCentredBlock("mu"), pg.NonCentredBlock("sigma", holding=["alpha"]), pg.Block("alpha")]
    bridge = pg.Bridge() if bridged else None
    sampler = pg.APG(oracles.hierarchy, data={"x": "groups"}, blocks=blocks, initial=bridge, example=X)
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
    """Two outer groups with a location each; vectors α below them, and data of one size per instance."""
    top = numpyro.sample("top", dist.Normal(0.0, 1.0))
    with numpyro.plate("outer", 2):
        mu = numpyro.sample("mu", dist.Normal(top, 0.7))
        with numpyro.plate("groups", x.shape[0]):
            alpha = numpyro.sample("alpha", dist.Normal(mu[:, None] * jnp.ones(2), 0.8).to_event(1))
            numpyro.sample("x", dist.Normal(alpha, 1.0).to_event(1), obs=x)


NESTED: dict[str, Any] = {"data": {"x": ("groups", None, None)}}


def nested_instance(num_groups: int) -> np.ndarray:
    return np.random.default_rng(num_groups).normal(0.5, 1.5, (num_groups, 2, 2)).astype(np.float32)


@pytest.fixture(scope="module")
def nested_sampler() -> pg.APG:
    blocks = [pg.NonCentredBlock("top"), pg.NonCentredBlock("mu"), pg.Block("alpha")]
    return pg.APG(nested, blocks=blocks, example=nested_instance(3), **NESTED)


def test_posteriors_of_ragged_instances_where_locations_move_one_by_one(nested_sampler):
    """top and μ are normal given x, and so is the evidence, with α summed out."""
    assert [plan.partition.plates for plan in nested_sampler.built.plans[:2]] == [(), ("outer",)]
    instances = [nested_instance(size) for size in (2, 3)]
    posterior = nested_sampler.sample(KEY, instances, num_sweeps=15, num_particles=10, num_populations=100)
    prior = np.ones((3, 3)) + np.diag([0.0, 0.49, 0.49])  # of (top, μ_1, μ_2)
    for index, x in enumerate(instances):
        counts = x.shape[0] * x.shape[2]
        precision = np.linalg.inv(prior) + np.diag([0.0, counts, counts]) / 1.64
        covariance = np.linalg.inv(precision)
        mean = covariance @ np.array([0.0, *x.sum(axis=(0, 2))]) / 1.64
        moments = np.array([mean, mean**2 + np.diag(covariance)])
        assert_moments(posterior[index]["top"], moments[:, 0])
        assert_moments(posterior[index]["mu"], moments[:, 1:])
        group = np.repeat([1, 2], counts)
        marginal = prior[np.ix_(group, group)] + 1.64 * np.eye(2 * counts)
        values = np.moveaxis(x, 1, 0).reshape(-1)
        exact = stats.multivariate_normal(np.zeros(2 * counts), marginal).logpdf(values)
        assert abs(posterior.log_evidence[index] - exact) < 5 * posterior.log_evidence_error[index]


def test_padding_changes_no_number(nested_sampler):
    """Whatever the padded values are, draws and weights are those of the instance alone."""
    built, x = nested_sampler.built, nested_instance(3)
    alpha = np.random.default_rng(1).normal(size=(3, 2, 2)).astype(np.float32)

    def moved(size: int, filler: float) -> Any:
        def longer(value: np.ndarray) -> jax.Array:
            return jnp.asarray(np.concatenate([value, np.full((size - 3, 2, 2), filler, np.float32)]))

        data = Data({"x": longer(x)}, {"groups": jnp.arange(size) < 3})
        latents = {"top": jnp.float32(0.4), "mu": jnp.array([0.1, -0.5]), "alpha": longer(alpha)}
        found = []
        for index, block in enumerate(built.blocks[:2]):
            conditional = conditional_at(built, index, data, latents)
            particle = Particle(latents, built.target(data).log_probs(latents))
            bound = block.bound(KEY, conditional, latents)
            after, log_v, _ = pg.Reweight()(MoveKeys(KEY, KEY), bound, conditional, particle)  # which takes all
            fresh = built.target(data).log_probs(after.latents)
            jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), after.log_probs, fresh)
            found.append((log_v, {**after.latents, "alpha": after.latents["alpha"][:3]}))
        return found

    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), moved(5, 1e4), moved(3, 0.0))


class Learned(eqx.Module):
    loc: jax.Array

    def __call__(self, x: jax.Array) -> None:
        mu = numpyro.sample("mu", dist.Normal(self.loc, 2.0))
        with numpyro.plate("groups", x.shape[0]):
            alpha = numpyro.sample("alpha", dist.Normal(mu, 1.0))
            numpyro.sample("x", dist.Normal(alpha, 1.0), obs=x)


def test_the_model_learns_from_non_centred_blocks():
    """The gradient of the learned location is Fisher's identity, E[(μ − loc)/4 | x], once for each of four events."""
    blocks = [pg.Block("mu"), pg.NonCentredBlock("mu", holding=["alpha"]), pg.Block("alpha")]
    loc = 0.3
    built = pg.APG(Learned(jnp.float32(loc)), data={"x": "groups"}, blocks=blocks, example=X).built
    batch = jax.tree.map(lambda leaf: leaf[None], complete({"x": jnp.asarray(X)}, {"x": ("groups",)}))

    def gradient(key: jax.Array) -> Any:
        return accumulate(built, key[None], batch, num_sweeps=1, num_particles=50)[0].arrays.model.loc

    found = jax.lax.map(gradient, jax.random.split(KEY, 200))
    mean = loc + 4.0 * np.sum(X - loc) / (2.0 + 4.0 * len(X))
    oracles.assert_mean(-np.asarray(found) / 4, (mean - loc) / 4)


# What is refused, and what samplers add by themselves -------------------------------------------------------------------


def mixed(x):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    switch = numpyro.sample("switch", dist.Bernoulli(0.5))
    with numpyro.plate("points", x.shape[0]):
        alpha = numpyro.sample("alpha", dist.Normal(mu, 1.0))
        count = numpyro.sample("count", dist.Bernoulli(logits=mu))
        bounded = numpyro.sample("bounded", dist.Beta(jnp.exp(mu), 1.0))
        numpyro.sample("x", dist.Normal(alpha + count + bounded + switch, 1.0), obs=x)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            pg.NonCentredBlock("alpha"),
            r"'alpha'.*no latent site has a location or a scale that depends on it; use a Block",
        ),
        (pg.NonCentredBlock("switch"), r"'switch' is discrete; use a Block"),
        (pg.NonCentredBlock("mu", holding=["x"]), r"cannot hold 'x', which is observed; it can hold \['alpha'\]"),
        (pg.NonCentredBlock("mu", holding=["count"]), r"cannot hold 'count', which is discrete"),
        (pg.NonCentredBlock("mu", holding=["bounded"]), r"cannot hold 'bounded', which has no location or scale"),
        (pg.NonCentredBlock("mu", holding=["tau"]), r"cannot hold 'tau', which the model does not have"),
        (pg.NonCentredBlock("tau"), r"names the site 'tau', which the model does not have"),
    ],
)
def test_blocks_that_cannot_hold_anything_are_refused(block, message):
    refused(message, mixed, block, *(pg.Block(name) for name in ("mu", "switch", "alpha", "count", "bounded")))


def test_a_list_of_sites_is_held():
    with pytest.raises(ValueError, match="not a list of names"):
        pg.NonCentredBlock("mu", holding="alpha")


def names(model: Any, example: Any, **options: Any) -> list[str]:
    return [block.name for block in pg.APG(model, example=example, **options).blocks]


def test_samplers_add_non_centred_blocks_for_locations_and_scales_of_a_plate():
    found = names(oracles.hierarchy, X, data={"x": "groups"})
    assert found == ["mu", "mu | standardised alpha", "sigma", "sigma | standardised alpha", "alpha"]
    assert names(nested, nested_instance(3), **NESTED) == [
        *("top", "top | standardised mu", "mu", "mu | standardised alpha", "alpha")
    ]


def test_samplers_add_none_where_children_say_all_or_nothing():
    """A chain of single sites, imputed values that nothing depends on, and elements that do not split."""

    def imputed(x):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("points", x.shape[0]):
            numpyro.sample("x", dist.Normal(mu, 1.0), obs=x, obs_mask=x > 0)

    def pooled(x):
        with numpyro.plate("outer", 2):
            mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
            with numpyro.plate("points", x.shape[0]):
                alpha = numpyro.sample("alpha", dist.Normal(mu, 1.0))
        with numpyro.plate("points", x.shape[0]):
            numpyro.sample("x", dist.Normal(alpha.sum(-1), 1.0), obs=x)

    assert names(oracles.chain, X, data={"x": "points"}) == ["a", "b"]
    assert names(imputed, X, data={"x": "points"}) == ["mu", "x_unobserved"]
    assert names(pooled, X, data={"x": (None,)}) == ["mu", "alpha"]
