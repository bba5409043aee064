"""A mixture of three Gaussians in two dimensions with unknown means, precisions and assignments.

One instance is a set of points. This is the first model of Wu et al. (2020), who write the proposals by hand.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import popgibbs as pg

AXES = {"x": "points"}


def model(x):
    with numpyro.plate("clusters", 3):
        tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0).expand([2]).to_event(1))
        mu = numpyro.sample("mu", dist.Normal(0.0, (0.1 * tau) ** -0.5).to_event(1))
    with numpyro.plate("points", len(x)):
        c = numpyro.sample("c", dist.Categorical(logits=jnp.zeros(3)))
        numpyro.sample("x", dist.Normal(mu[c], tau[c] ** -0.5).to_event(1), obs=x)


rng = np.random.default_rng(0)
centres = np.array([[-3.0, 0.0], [3.0, 1.0], [0.0, 4.0]])
example = {"x": (centres[rng.integers(3, size=60)] + rng.normal(size=(60, 2))).astype(np.float32)}

if __name__ == "__main__":
    import matplotlib.pyplot as plt
    from _shared import SAMPLING, TRAINING, save

    sampler = pg.APG(model, data=AXES, example=example)
    print(sampler.describe())
    untrained = sampler.sample(jax.random.key(0), [example], **SAMPLING)
    fit = sampler.fit(jax.random.key(1), **TRAINING)
    trained = fit.sampler.sample(jax.random.key(2), [example], **SAMPLING)
    print(trained.summary(0))

    figure, panels = plt.subplots(1, 2, figsize=(9, 4), sharex=True, sharey=True, layout="constrained")
    for panel, (title, posterior) in zip(panels, {"training-free": untrained, "trained": trained}.items(), strict=True):
        draw = {site: values[0, 0] for site, values in posterior.resampled(jax.random.key(3))[0].items()}
        panel.scatter(*example["x"].T, c=draw["c"], cmap="Set2", s=15)
        panel.errorbar(*draw["mu"].T, *(2 * draw["tau"].T[::-1] ** -0.5), fmt="k+")
        panel.set(title=f"{title}: one draw, means ± 2 sd", aspect="equal")
    save(figure, "gaussian_mixture")
