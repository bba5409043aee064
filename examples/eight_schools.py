"""Eight schools: how much does coaching raise test scores, at each school and on average?

One instance is one study: the estimated effect at every school and the standard error of the estimate. The true effects
come from a normal distribution whose mean and spread are unknown. Data: Rubin (1981), as in Gelman et al., *Bayesian Data
Analysis*; priors as in posteriordb.
"""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import popgibbs as pg

AXES = {"y": "schools", "sigma": "schools"}


def model(y, sigma):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


example = {
    "y": np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float32),
    "sigma": np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float32),
}

if __name__ == "__main__":
    from _shared import SAMPLING, TRAINING, draw_intervals

    sampler = pg.APG(model, data=AXES, example=example)
    print(sampler.describe())
    untrained = sampler.sample(jax.random.key(0), [example], **SAMPLING)
    fit = sampler.fit(jax.random.key(1), **TRAINING)
    trained = fit.sampler.sample(jax.random.key(2), [example], **SAMPLING)
    print(trained.summary(0))
    draw_intervals("eight_schools", {"training-free": untrained, "trained": trained}, ["mu", "tau", "theta"])
