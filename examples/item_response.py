"""Item response theory: how able is each student, and how hard and how telling is each question?

One instance is a test: which of ten questions each of twenty students answered correctly. A question that discriminates
well separates students just below its difficulty from those just above.
"""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import popgibbs as pg

AXES = {"y": ("students", "items")}


def model(y):
    students, items = numpyro.plate("students", y.shape[0], dim=-2), numpyro.plate("items", y.shape[1], dim=-1)
    with students:
        ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
    with items:
        difficulty = numpyro.sample("difficulty", dist.Normal(0.0, 1.0))
        discrimination = numpyro.sample("discrimination", dist.LogNormal(0.0, 0.5))
    with students, items:
        numpyro.sample("y", dist.Bernoulli(logits=discrimination * (ability - difficulty)), obs=y)


rng = np.random.default_rng(0)
chance = 1 / (1 + np.exp(rng.normal(size=10) - rng.normal(size=(20, 1))))
example = {"y": rng.binomial(1, chance).astype(np.int32)}

if __name__ == "__main__":
    from _shared import SAMPLING, TRAINING, draw_intervals

    sampler = pg.APG(model, data=AXES, example=example)
    print(sampler.describe())
    instances, truths = sampler.simulate(jax.random.key(0), 1)
    untrained = sampler.sample(jax.random.key(1), instances, **SAMPLING)
    fit = sampler.fit(jax.random.key(2), **TRAINING)
    trained = fit.sampler.sample(jax.random.key(3), instances, **SAMPLING)
    print(trained.summary(0))
    sites = ["ability", "difficulty", "discrimination"]
    draw_intervals("item_response", {"training-free": untrained, "trained": trained}, sites, truths[0])
