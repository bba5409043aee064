"""Exchangeable components: found where renaming them keeps the log joint, and in one labelling in summaries."""

from itertools import permutations
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions.transforms import OrderedTransform
from scipy.optimize import linear_sum_assignment

import oracles
import popgibbs as pg
from models import clusters_sampler
from popgibbs.diagnostics.relabelling import _orders, common_labelling
from popgibbs.model import Components
from popgibbs.posterior import Part

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
X = np.array([-2.5, 1.9, 2.3, -3.1, 2.8], np.float32)


def mixture(x):
    """Weights, and clusters with two sites."""
    with numpyro.plate("clusters", 3):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("points", x.shape[0]):
        c = numpyro.sample("c", dist.Categorical(share))
        numpyro.sample("x", dist.Normal(mu[c], scale[c, None]).to_event(1), obs=x)


def blocks(*names: str) -> list[pg.Block]:
    return [pg.Block(*names, proposal=pg.Prior(), move=pg.Metropolis())]


def sampler_of(model: Any, *names: str, x: np.ndarray = X, **options: Any) -> pg.APG:
    return pg.APG(model, data={"x": "points"}, blocks=blocks(*names), example={"x": x}, **options)


@pytest.fixture(scope="module")
def sampled() -> tuple[pg.APG, pg.Posterior]:
    generator = np.random.default_rng(0)
    instances = [{"x": generator.normal(size=(size, 2)).astype(np.float32)} for size in (4, 6, 4)]
    sampler = sampler_of(mixture, "scale", "mu", "share", "c", x=instances[0]["x"])
    return sampler, sampler.sample(KEY, instances, num_sweeps=2, num_particles=12, num_populations=3)


def shuffled(posterior: pg.Posterior, components: Components, seed: int) -> pg.Posterior:
    """The posterior with the components of every particle renamed at random, but not its stored log-probabilities."""
    parts = []
    for part in posterior._parts:
        shape = part.population.log_weights.shape
        keys = jax.random.split(jax.random.key(seed), shape)
        orders = jax.vmap(jax.vmap(jax.vmap(lambda key: jax.random.permutation(key, components.size))))(keys)
        particles = part.population.particles
        latents = jax.vmap(jax.vmap(jax.vmap(components.reordered)))(dict(particles.latents), orders)
        population = eqx.tree_at(lambda at: at.particles.latents, part.population, jax.device_get(latents))
        parts.append(Part(part.bucket, population, part.info))
    return pg.Posterior(posterior._runner, parts)


# Finding components -----------------------------------------------------------------------------------------------------


def test_components_weights_and_labels_of_a_mixture_are_found(sampled: tuple[pg.APG, pg.Posterior]) -> None:
    (found,) = sampled[0].built.exchangeable
    assert dict(found.axes) == {"scale": (-1,), "mu": (-2,), "share": (-1,)}
    assert (found.size, found.plate, found.labels) == (3, "clusters", ("c",))


def test_both_axes_of_a_matrix_between_components_are_found() -> None:
    def chain(x):
        with numpyro.plate("states", 3):
            mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
            row = numpyro.sample("row", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("points", x.shape[0]):
            before = numpyro.sample("before", dist.Categorical(logits=jnp.zeros(3)))
            after = numpyro.sample("after", dist.Categorical(row[before]))
            numpyro.sample("x", dist.Normal(mu[before] + mu[after], 1.0), obs=x)

    (found,) = sampler_of(chain, "mu", "row", "before", "after").built.exchangeable
    assert dict(found.axes) == {"mu": (-1,), "row": (-2, -1)}
    assert found.labels == ("before", "after")


def test_components_with_different_priors_or_shares_are_not_exchangeable() -> None:
    def shifted(x):
        with numpyro.plate("clusters", 2):
            mu = numpyro.sample("mu", dist.Normal(jnp.array([0.0, 0.1]), 1.0))
        with numpyro.plate("points", x.shape[0]):
            c = numpyro.sample("c", dist.Bernoulli(0.5))
            numpyro.sample("x", dist.Normal(mu[c], 1.0), obs=x)

    different = sampler_of(shifted, "mu", "c")
    assert different.built.exchangeable == ()
    assert clusters_sampler(example={"x": X}).built.exchangeable == ()  # shares differ
    posterior = different.sample(KEY, [X], num_sweeps=1)
    assert posterior.relabelled() is posterior
    with pytest.raises(ValueError, match=r"exchangeable\('mu',\), but renaming the components changes"):
        sampler_of(shifted, "mu", "c", exchangeable=[pg.exchangeable("mu", labels="c")])


def test_components_with_different_supports_are_not_exchangeable() -> None:
    def apart(x):
        with numpyro.plate("clusters", 2):
            mu = numpyro.sample("mu", dist.Uniform(jnp.array([-1.0, 0.0]), jnp.array([0.0, 1.0])))
        with numpyro.plate("points", x.shape[0]):
            c = numpyro.sample("c", dist.Bernoulli(0.5))
            numpyro.sample("x", dist.Normal(mu[c], 1.0), obs=x)

    assert sampler_of(apart, "mu", "c").built.exchangeable == ()


def test_ordered_components_are_refused() -> None:
    def ordered(x):
        base = dist.Normal(jnp.zeros(2), 1.0).to_event(1)
        mu = numpyro.sample("mu", dist.TransformedDistribution(base, OrderedTransform()))
        with numpyro.plate("points", x.shape[0]):
            c = numpyro.sample("c", dist.Bernoulli(0.5))
            numpyro.sample("x", dist.Normal(mu[c], 1.0), obs=x)

    assert sampler_of(ordered, "mu", "c").built.exchangeable == ()
    with pytest.raises(ValueError, match="renaming the components changes"):
        sampler_of(ordered, "mu", "c", exchangeable=[pg.exchangeable("mu", labels="c")])


def test_components_in_an_axis_can_be_declared_and_found_ones_left_alone() -> None:
    def in_axis(x):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        with numpyro.plate("points", x.shape[0]):
            c = numpyro.sample("c", dist.Bernoulli(0.5))
            numpyro.sample("x", dist.Normal(mu[c], 1.0), obs=x)

    assert sampler_of(in_axis, "mu", "c").built.exchangeable == ()
    declared = [pg.exchangeable("mu", labels="c")]
    sampler = sampler_of(in_axis, "mu", "c", exchangeable=declared)
    assert sampler.built.exchangeable == (Components(2, None, (("mu", (-1,)),), ("c",)),)
    assert sampler.with_blocks(blocks("mu", "c")).check({"x": X}).exchangeable == sampler.built.exchangeable
    assert sampler_of(oracles.pair, "mu", "c", exchangeable=[]).built.exchangeable == ()


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        (pg.exchangeable("nu", labels="c"), "names 'nu', which is not a latent site"),
        (pg.exchangeable("mu", "scale", "share", labels="x"), "names 'x', which is not a latent site"),
        (pg.exchangeable("mu", "share", labels="c"), "'scale' is in the plate 'clusters' of the components too"),
        (pg.exchangeable("mu", "scale", labels="mu"), "takes the values None"),
        (pg.exchangeable("mu", "scale", labels="c"), "renaming the components changes"),
        (pg.exchangeable("share"), "needs labels, or sites in a plate"),
    ],
)
def test_wrong_declarations_are_refused(declaration: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sampler_of(mixture, "scale", "mu", "share", "c", x=np.zeros((3, 2), np.float32), exchangeable=[declaration])


def test_a_declaration_names_sites() -> None:
    with pytest.raises(ValueError, match="needs the names of the sites"):
        pg.exchangeable(labels="c")


# One labelling ----------------------------------------------------------------------------------------------------------


def test_summaries_do_not_depend_on_labels(sampled: tuple[pg.APG, pg.Posterior]) -> None:
    sampler, posterior = sampled
    (components,) = sampler.built.exchangeable
    expected = posterior.summary()
    for seed in range(3):
        renamed = shuffled(posterior, components, seed)
        assert not renamed.summary(relabel=False).equals(posterior.summary(relabel=False))
        np.testing.assert_allclose(renamed.summary().to_numpy(), expected.to_numpy(), rtol=1e-5, atol=1e-6)
        drawn, other = (each.to_arviz(KEY).posterior for each in (posterior, renamed))
        assert drawn.equals(other)


def test_renamed_particles_have_the_same_factors_in_another_order(sampled: tuple[pg.APG, pg.Posterior]) -> None:
    sampler, posterior = sampled
    renamed = posterior.relabelled()
    np.testing.assert_allclose(renamed.log_joint, posterior.log_joint, rtol=1e-6)
    assert any((renamed[i]["c"] != posterior[i]["c"]).any() for i in range(3))
    for part in renamed._parts:
        for row in range(len(part.bucket)):
            data = jax.tree.map(lambda leaf: jnp.asarray(leaf[row]), part.bucket.data)  # noqa: B023
            target, particles = sampler.built.target(data), part.population.particles
            latents = {name: value[row] for name, value in particles.latents.items()}
            fresh = jax.vmap(jax.vmap(target.log_probs))(latents)
            for name, log_prob in fresh.items():
                np.testing.assert_allclose(particles.log_probs[name][row], log_prob, rtol=1e-4, atol=1e-4)
    assert renamed.extend(KEY, 1).num_sweeps == 3


def test_means_of_separated_components_are_those_of_enumeration() -> None:
    """Where clusters are separated, the first place holds the lower mean."""
    exact = oracles.pair_posterior(X)
    draws = oracles.pair_draws(np.random.default_rng(0), X, 4_000)
    orders = common_labelling(draws["mu"][..., None], np.ones(4_000), np.zeros(4_000))
    placed = np.take_along_axis(draws["mu"], orders, axis=1)
    oracles.assert_mean(placed, exact.probability @ np.sort(exact.loc, axis=1))
    assert abs(draws["mu"].mean(axis=0) - placed.mean(axis=0)).min() > 1  # without it, the means of both are the same


def test_draws_without_weight_change_nothing() -> None:
    generator = np.random.default_rng(1)
    values = generator.normal(size=(60, 3, 2)) + 4 * np.arange(3)[:, None]
    weights = generator.uniform(size=60) * (np.arange(60) < 40)
    joint = generator.normal(size=60) + 100.0 * (weights == 0)
    values[40:] = 0.01 * values[40:]
    orders = common_labelling(values, weights, joint)
    np.testing.assert_array_equal(orders[:40], np.broadcast_to(np.arange(3), (40, 3)))


@pytest.mark.parametrize("size", [2, 5, 12])
def test_every_draw_has_the_best_assignment(size: int) -> None:
    generator = np.random.default_rng(size)
    values = generator.normal(size=(50, size, 2))
    mean, variance = generator.normal(size=(size, 2)), generator.uniform(0.2, 2.0, size=(size, 2))
    cost = np.sum((values[:, :, None] - mean) ** 2 / variance + np.log(variance), axis=-1)

    def of(order: Any, draw: int) -> float:
        return float(cost[draw, np.asarray(order), np.arange(size)].sum())

    for draw, order in enumerate(_orders(values, mean, variance)):
        assert sorted(order) == list(range(size))
        if size < 6:
            best = min(of(other, draw) for other in permutations(range(size)))
        else:
            best = float(cost[draw][linear_sum_assignment(cost[draw])].sum())
        np.testing.assert_allclose(of(order, draw), best, rtol=1e-9)
