"""Training samplers that are built from the model on given instances."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import popgibbs as pg

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)


class Loading(eqx.Module):
    """x_n ~ Normal(w z_n, 1) with z_n ~ Normal(0, 1): the variance of x is 1 + w²."""

    w: jax.Array

    def __call__(self, x):
        with numpyro.plate("points", x.shape[0]):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            numpyro.sample("x", dist.Normal(self.w * z, 1.0), obs=x)


def test_a_model_is_learned_with_exact_updates_that_nobody_wrote():
    x = 2.0 * np.random.default_rng(0).normal(size=400).astype(np.float32)
    sampler = pg.APG(Loading(jnp.float32(0.5)), data={"x": "points"}, example={"x": x})
    budget = {"num_sweeps": 1, "num_particles": 4, "batch_size": 1, "progress": False}
    fit = sampler.fit(KEY, [x], num_steps=150, optimiser=optax.adam(0.03), **budget)
    best = np.sqrt(np.mean(x**2) - 1)  # the maximum of the likelihood
    assert abs(fit.sampler.model.w - best) < 0.1


def test_there_is_nothing_to_train_where_all_updates_are_exact():
    x = np.zeros(5, np.float32)

    def located(x):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("points", x.shape[0]):
            numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)

    sampler = pg.APG(located, data={"x": "points"}, example=x)
    with pytest.warns(UserWarning, match="nothing to train"):
        fit = sampler.fit(KEY, num_steps=3)
    assert fit.sampler is sampler
