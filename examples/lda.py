"""Latent Dirichlet allocation: topics of a small corpus, and their shares in each document.

One instance is a corpus: six documents of twenty words each, from a vocabulary of twelve. A topic is a distribution over
the vocabulary; every word of a document comes from one of three topics, in proportions of the document's own.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import popgibbs as pg

AXES = {"w": ("documents", "words")}


def model(w):
    with numpyro.plate("topics", 3):
        phi = numpyro.sample("phi", dist.Dirichlet(jnp.full(12, 0.5)))
    with numpyro.plate("documents", w.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(3, 0.5)))
        with numpyro.plate("words", w.shape[1], dim=-1):
            z = numpyro.sample("z", dist.Categorical(probs=theta))
            numpyro.sample("w", dist.Categorical(probs=phi[z]), obs=w)


rng = np.random.default_rng(0)
words = rng.dirichlet(np.full(3, 0.5), 6) @ rng.dirichlet(np.full(12, 0.5), 3)  # probabilities of words in each document
example = {"w": np.array([rng.choice(12, 20, p=row) for row in words], np.int32)}

if __name__ == "__main__":
    import matplotlib.pyplot as plt
    from _shared import SAMPLING, TRAINING, save

    sampler = pg.APG(model, data=AXES, example=example)
    print(sampler.describe())
    untrained = sampler.sample(jax.random.key(0), [example], **SAMPLING)
    fit = sampler.fit(jax.random.key(1), **TRAINING)
    trained = fit.sampler.sample(jax.random.key(2), [example], **SAMPLING)
    print(trained.summary(0))

    figure, panels = plt.subplots(1, 3, figsize=(11, 2.6), layout="constrained")
    panels[0].imshow(words, vmin=0, vmax=0.5)
    panels[0].set(title="generating words by document", xlabel="word", ylabel="document")
    for panel, (title, posterior) in zip(
        panels[1:], {"training-free": untrained, "trained": trained}.items(), strict=True
    ):
        draws = posterior.resampled(jax.random.key(3))[0]
        panel.imshow((draws["theta"][..., 0, :] @ draws["phi"]).mean((0, 1)), vmin=0, vmax=0.5)
        panel.set(title=f"{title}: posterior mean", xlabel="word")
    save(figure, "lda")
