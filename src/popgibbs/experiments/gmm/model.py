"""The mixture as a NumPyro program."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from popgibbs.families import NormalGamma

NUM_CLUSTERS = 3
PRIOR = NormalGamma(
    loc=jnp.asarray(0.0), count=jnp.asarray(0.1), concentration=jnp.asarray(2.0), rate=jnp.asarray(2.0)
)


def mixture(x: jax.Array) -> None:
    """τ_m, μ_m ~ NormalGamma, c_n ~ Categorical, x_n ~ Normal(μ_c, 1/√τ_c)."""
    with numpyro.plate("clusters", NUM_CLUSTERS):
        tau = numpyro.sample("tau", PRIOR.precision().expand([2]).to_event(1))
        mu = numpyro.sample("mu", PRIOR.mean(tau).to_event(1))
    with numpyro.plate("points", x.shape[0]):
        c = numpyro.sample("c", dist.Categorical(logits=jnp.zeros(NUM_CLUSTERS)))
        numpyro.sample("x", dist.Normal(mu[c], tau[c] ** -0.5).to_event(1), obs=x)
