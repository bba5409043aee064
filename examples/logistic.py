"""Hierarchical logistic regression: an intercept and a slope for every group.

One instance is a set of groups with up to eight yes-or-no outcomes each, and one predictor. `seen` says which outcomes
exist, so that groups differ in size. Intercepts and slopes come from normal distributions with unknown means and spreads.
"""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import popgibbs as pg

AXES = {"y": ("groups", "obs"), "x": ("groups", "obs"), "seen": ("groups", "obs")}


def model(y, x, seen):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.5))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("groups", y.shape[0], dim=-2):
        alpha = numpyro.sample("alpha", dist.Normal(mu, sigma))
        beta = numpyro.sample("beta", dist.Normal(slope, spread))
        with numpyro.plate("obs", y.shape[1], dim=-1), numpyro.handlers.mask(mask=seen):
            numpyro.sample("y", dist.Bernoulli(logits=alpha + beta * x), obs=y)


rng = np.random.default_rng(0)
x = rng.normal(size=(12, 8)).astype(np.float32)
chance = 1 / (1 + np.exp(-rng.normal(0.5, 1.0, (12, 1)) - rng.normal(1.0, 0.5, (12, 1)) * x))
example = {
    "y": rng.binomial(1, chance).astype(np.int32),
    "x": x,
    "seen": np.arange(8) < rng.integers(2, 9, (12, 1)),
}

if __name__ == "__main__":
    from _shared import SAMPLING, TRAINING, draw_intervals

    sampler = pg.APG(model, data=AXES, example=example)
    print(sampler.describe())
    instances, truths = sampler.simulate(jax.random.key(0), 1)
    untrained = sampler.sample(jax.random.key(1), instances, **SAMPLING)
    fit = sampler.fit(jax.random.key(2), **TRAINING)
    trained = fit.sampler.sample(jax.random.key(3), instances, **SAMPLING)
    print(trained.summary(0))
    sites = ["mu", "sigma", "slope", "spread", "alpha", "beta"]
    draw_intervals("logistic", {"training-free": untrained, "trained": trained}, sites, truths[0])
