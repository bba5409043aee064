"""The mixture as a NumPyro program."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from popgibbs.statistics import Categorical, NormalGamma, pick

NUM_CLUSTERS = 3
PRIOR = NormalGamma(loc=0.0, count=0.1, concentration=2.0, rate=2.0)


def mixture(x: jax.Array) -> None:
    """τ_m, μ_m ~ NormalGamma, c_n ~ Categorical, x_n ~ Normal(μ_c, 1/√τ_c)."""
    with numpyro.plate("clusters", NUM_CLUSTERS):
        tau: Any = numpyro.sample("tau", PRIOR.precision().expand([2]).to_event(1))
        mu: Any = numpyro.sample("mu", PRIOR.mean(tau).to_event(1))
    with numpyro.plate("points", x.shape[0]):
        c: Any = numpyro.sample("c", Categorical(jnp.zeros(NUM_CLUSTERS)).distribution())
        numpyro.sample("x", dist.Normal(pick(mu, c), pick(tau**-0.5, c)).to_event(1), obs=x)
