"""How far log-probabilities that are carried along are from fresh ones."""

import jax.numpy as jnp
from jaxtyping import Array, Float

ABSOLUTE, RELATIVE = 1e-2, 3e-5  # what rounding alone is seldom seen to exceed, in nats and of a number's size


def disagreement(carried: Float[Array, "..."], fresh: Float[Array, "..."]) -> Float[Array, "..."]:
    """The difference of two log-probabilities, in units of what rounding may explain: above one it needs a reason."""
    same = (carried == fresh) | (jnp.isnan(carried) & jnp.isnan(fresh))
    allowed = ABSOLUTE + RELATIVE * jnp.minimum(jnp.abs(carried), jnp.abs(fresh))
    difference = jnp.abs(carried - fresh) / allowed
    return jnp.where(same, 0.0, jnp.where(jnp.isnan(difference), jnp.inf, difference))
