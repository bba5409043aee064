"""Event rates of several units that were watched for different times, such as failures of pumps.

One instance is a set of units: the number of events of each unit and its exposure. Every unit has its own rate; the
rates come from a gamma distribution whose shape and rate are unknown, so that units watched briefly borrow from others.
"""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import popgibbs as pg

AXES = {"y": "units", "exposure": "units"}


def model(y, exposure):
    a = numpyro.sample("a", dist.Gamma(3.0, 1.0))
    b = numpyro.sample("b", dist.Gamma(3.0, 1.0))
    with numpyro.plate("units", len(y)):
        rate = numpyro.sample("rate", dist.Gamma(a, b))
        numpyro.sample("y", dist.Poisson(rate * exposure), obs=y)


example = {
    "y": np.array([0, 3, 2, 7, 3, 9, 16, 5, 20, 14], np.int32),
    "exposure": np.array([0.5, 1, 1, 2, 2, 4, 4, 8, 8, 16], np.float32),
}

if __name__ == "__main__":
    from _shared import SAMPLING, TRAINING, draw_intervals

    sampler = pg.APG(model, data=AXES, example=example)
    print(sampler.describe())
    untrained = sampler.sample(jax.random.key(0), [example], **SAMPLING)
    fit = sampler.fit(jax.random.key(1), **TRAINING)
    trained = fit.sampler.sample(jax.random.key(2), [example], **SAMPLING)
    print(trained.summary(0))
    draw_intervals("gamma_poisson", {"training-free": untrained, "trained": trained}, ["a", "b", "rate"])
