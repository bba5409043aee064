"""Mixtures drawn from the model itself, so that exact answers are known."""

from typing import Any

import jax

from popgibbs._typing import PRNGKey, Values
from popgibbs.paper.gmm.model import NUM_CLUSTERS, PRIOR


def simulate(key: PRNGKey, points: int) -> tuple[Values, Values]:
    """An instance and the latents that generated it."""
    key_tau, key_mu, key_c, key_x = jax.random.split(key, 4)
    tau: Any = PRIOR.precision().sample(key_tau, (NUM_CLUSTERS, 2))
    mu: Any = PRIOR.mean(tau).sample(key_mu)
    c = jax.random.randint(key_c, (points,), 0, NUM_CLUSTERS)
    x = mu[c] + tau[c] ** -0.5 * jax.random.normal(key_x, (points, 2))
    return {"x": x}, {"tau": tau, "mu": mu, "c": c}
