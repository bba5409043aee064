"""Training on instances and latents that the model draws."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from tests import oracles
from tests.models import Location, located, located_sampler

import popgibbs as pg
from popgibbs.data import complete
from popgibbs.training.pairs import accumulate_pairs

KEY = jax.random.key(0)
X = np.zeros(3, np.float32)


def gradients(proposal: Location, num: int) -> Location:
    """The gradient of the proposal at every one of many pairs."""
    built = located_sampler(proposal, example=X).built
    data = complete({"x": X}, {"x": ("points",)})

    def one(key):
        keys, batch = key[None], jax.tree.map(lambda leaf: leaf[None], data)
        return accumulate_pairs(built, keys, batch, instance_weights=jnp.ones(1))[0].arrays

    return jax.jit(jax.vmap(one))(jax.random.split(KEY, num)).blocks[0].kernel.program


def test_the_gradient_of_pairs_is_that_of_the_inclusive_divergence():
    """For q = Normal(a Σx/(N+1), e^s/√(N+1)) the divergence, summed over first draw and update, has a closed form."""
    for a, s in ((1.0, 0.0), (0.5, 0.3)):
        found = gradients(Location(jnp.float32(a), jnp.float32(s)), 4000)
        # E‖Σx/(N+1) − μ‖² etc. for N = 3: var(Σx) = N + N² = 12, and μ given x has variance 1/(N+1).
        mean_square = 12.0 / 16.0
        slope_a = 2 * (a - 1) * mean_square * np.exp(-2 * s) * 4
        slope_s = 2 * (1 - np.exp(-2 * s) * 4 * (0.25 + (a - 1) ** 2 * mean_square))
        oracles.assert_mean(found.a, slope_a)
        oracles.assert_mean(found.s, slope_s)


def test_fit_without_instances_learns_the_exact_posterior():
    sampler = located_sampler(example=X)
    fit = sampler.fit(KEY, num_steps=400, batch_size=50, optimiser=optax.adam(0.02), progress=False)
    learned = fit.sampler.blocks[0].proposal
    np.testing.assert_allclose([learned.a, learned.s], [1.0, 0.0], atol=0.06)
    assert fit.history["acceptance"][-1].shape == (1,)


def test_simulated_pairs_come_from_the_joint():
    sampler = located_sampler(example=X)
    instances, latents = sampler.simulate(KEY, 4000)
    mu = np.array([z["mu"] for z in latents])
    x = np.stack([instance["x"] for instance in instances])
    oracles.assert_mean(mu**2, 1.0)
    oracles.assert_mean(x[:, 0] * mu, 1.0)
    oracles.assert_mean(x[:, 0] * x[:, 1], 1.0)
    several, _ = sampler.simulate(KEY, 3, like=[{"x": X}, {"x": np.zeros(5, np.float32)}])
    assert [instance["x"].shape for instance in several] == [(3,), (5,), (3,)]


def test_what_cannot_be_simulated_is_refused():
    def walk(x):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.sample("x", dist.Normal(jnp.roll(x, 1), scale).to_event(1), obs=x)

    def halved(x):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("points", x.shape[0]):
            numpyro.sample("half", dist.Normal(mu, 1.0), obs=x / 2)

    for model, match in ((walk, "'x' is computed from 'x'"), (halved, "'half' observes something")):
        sampler = pg.APG(model, data={"x": (None,)}, example=X)
        with pytest.raises(ValueError, match=match):
            sampler.fit(KEY, num_steps=1)


def test_fit_without_instances_says_what_it_cannot_train():
    class Learned(eqx.Module):
        scale: jax.Array

        def __call__(self, x):
            mu = numpyro.sample("mu", dist.Normal(0.0, jnp.exp(self.scale)))
            with numpyro.plate("points", x.shape[0]):
                numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)

    with pytest.raises(ValueError, match="the model has arrays to train"):
        pg.APG(Learned(jnp.zeros(())), data={"x": "points"}, example=X).fit(KEY, num_steps=1)
    blocks = [pg.Block("mu", proposal=pg.Laplace())]
    with pytest.raises(ValueError, match="no block has anything to train"):
        pg.APG(located, data={"x": "points"}, blocks=blocks, example=X).fit(KEY, num_steps=1)
    with pytest.raises(ValueError, match="like="):
        located_sampler(example=X).fit(KEY, [X], like=[X], num_steps=1)
    with pytest.raises(ValueError, match="has not seen an instance"):
        located_sampler().fit(KEY, num_steps=1)
