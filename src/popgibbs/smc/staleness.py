"""The disagreement of carried log-probabilities with fresh ones."""

import jax.numpy as jnp
from jaxtyping import Array, Float

ABSOLUTE, RELATIVE = 1e-2, 3e-5  # rounding errors rarely exceed these, in nats and relative


def disagreement(carried: Float[Array, "..."], fresh: Float[Array, "..."]) -> Float[Array, "..."]:
    """The difference of two log-probabilities in units of the allowed rounding error; above one it is suspicious."""
    same = (carried == fresh) | (jnp.isnan(carried) & jnp.isnan(fresh))
    allowed = ABSOLUTE + RELATIVE * jnp.minimum(jnp.abs(carried), jnp.abs(fresh))
    difference = jnp.abs(carried - fresh) / allowed
    return jnp.where(same, 0.0, jnp.where(jnp.isnan(difference), jnp.inf, difference))
