"""Probabilistic PCA with a decoder that is learned together with the sampler.

One instance is a set of five-dimensional measurements, which two unknown coordinates per measurement explain up to noise.
The decoder is shared by all instances: training moves its arrays towards those that make the instances most likely.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import popgibbs as pg

AXES = {"x": "points"}
NOISE = 0.5


class Decoder(eqx.Module):
    weight: jax.Array
    bias: jax.Array

    def __call__(self, x):
        with numpyro.plate("points", len(x)):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
            numpyro.sample("x", dist.Normal(z @ self.weight + self.bias, NOISE).to_event(1), obs=x)


rng = np.random.default_rng(0)
model = Decoder(jnp.asarray(rng.normal(size=(2, 5)), jnp.float32), jnp.zeros(5))
true_weight, true_bias = np.array([[2.0, 1, 0, -1, -2], [1, -1, 1, -1, 1]]), np.array([0.0, 1, 2, 1, 0])
clouds = rng.normal(size=(50, 30, 2)) @ true_weight + true_bias + NOISE * rng.normal(size=(50, 30, 5))
instances = [{"x": cloud.astype(np.float32)} for cloud in clouds]
example = instances[0]

if __name__ == "__main__":
    import matplotlib.pyplot as plt
    from _shared import SAMPLING, TRAINING, save

    sampler = pg.APG(model, data=AXES, example=example)
    print(sampler.describe())
    untrained = sampler.sample(jax.random.key(0), [example], **SAMPLING)
    fit = sampler.fit(jax.random.key(1), instances, **TRAINING)
    trained = fit.sampler.sample(jax.random.key(2), [example], **SAMPLING)
    print(trained.summary(0))

    figure, panels = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    for panel, (title, weight) in zip(
        panels, {"truth": true_weight, "before": model.weight, "trained": fit.sampler.model.weight}.items(), strict=True
    ):
        image = panel.imshow(weight.T @ weight, cmap="RdBu", vmin=-5, vmax=5)
        panel.set(title=f"covariance explained: {title}")
    figure.colorbar(image, ax=panels)
    save(figure, "ppca")
