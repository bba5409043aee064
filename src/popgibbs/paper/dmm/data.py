"""Simulated instances: rings in the plane."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from popgibbs._typing import PRNGKey, Values
from popgibbs.paper.dmm.model import NUM_CLUSTERS

RADIUS = 2.0
CENTRE_SCALE = 3.0
NOISE = 0.1
TURNS = 2


def simulate(key: PRNGKey, points: int) -> tuple[Values, Values]:
    """Four rings with the same number of points each, and their latents.

    The angles of a ring's points are evenly spaced over two turns from a random start; h is the angle in turns.
    """
    key_centre, key_start, key_noise = jax.random.split(key, 3)
    mu = CENTRE_SCALE * jax.random.normal(key_centre, (NUM_CLUSTERS, 2))
    c = jnp.arange(points) % NUM_CLUSTERS
    place = (jnp.arange(points) // NUM_CLUSTERS) * NUM_CLUSTERS / points
    h = (TURNS * place + jax.random.uniform(key_start, (NUM_CLUSTERS,))[c]) % 1.0
    noise = NOISE * jax.random.normal(key_noise, (points, 2))
    return {"x": mu[c] + ring(h) + noise}, {"mu": mu, "c": c, "h": h}


def ring(h: Float[Array, " point"]) -> Float[Array, "point 2"]:
    """The curve that generates the points, from the angle in turns."""
    angle = 2 * jnp.pi * h
    return RADIUS * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)
