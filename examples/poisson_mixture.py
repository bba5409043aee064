"""A mixture of three Poisson distributions with unknown weights and rates, for counts from a mixed population.

One instance is a set of counts, such as the number of calls by each customer.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import popgibbs as pg

AXES = {"y": "points"}


def model(y):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(3, 2.0)))
    with numpyro.plate("clusters", 3):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 0.2))
    with numpyro.plate("points", len(y)):
        c = numpyro.sample("c", dist.Categorical(probs=weights))
        numpyro.sample("y", dist.Poisson(rate[c]), obs=y)


rng = np.random.default_rng(0)
example = {"y": rng.poisson(rng.choice([2.0, 9.0, 22.0], 50, p=[0.5, 0.3, 0.2])).astype(np.int32)}

if __name__ == "__main__":
    import matplotlib.pyplot as plt
    from _shared import SAMPLING, TRAINING, save

    sampler = pg.APG(model, data=AXES, example=example)
    print(sampler.describe())
    untrained = sampler.sample(jax.random.key(0), [example], **SAMPLING)
    fit = sampler.fit(jax.random.key(1), **TRAINING)
    trained = fit.sampler.sample(jax.random.key(2), [example], **SAMPLING)
    print(trained.summary(0))

    figure, panel = plt.subplots(figsize=(7, 3.5), layout="constrained")
    counts = np.arange(example["y"].max() + 5)
    panel.hist(example["y"], counts - 0.5, density=True, color="lightgrey", label="data")
    for title, posterior in {"training-free": untrained, "trained": trained}.items():
        draws = posterior.resampled(jax.random.key(3))[0]
        rates, weights = (draws[site].reshape(-1, 3, 1) for site in ("rate", "weights"))
        density = np.sum(weights * np.exp(dist.Poisson(rates).log_prob(counts)), axis=1)
        low, high = np.quantile(density, [0.05, 0.95], axis=0)
        panel.fill_between(counts, low, high, alpha=0.4, label=f"{title}: 90% interval of the distribution")
    panel.set(xlabel="count")
    panel.legend(fontsize="small")
    save(figure, "poisson_mixture")
