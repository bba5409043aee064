"""Small models and blocks, and helpers that check whether their sampler is built or refused."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import popgibbs as pg

EXAMPLE = {"x": np.array([0.3, -1.2, 2.0, 0.7, 1.1], np.float32)}


def model(x: jax.Array) -> None:
    """τ ~ Gamma, μ_k ~ Normal, c_n ~ Categorical, x_n ~ Normal(μ_c, 1/√τ)."""
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    with numpyro.plate("clusters", 3):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with numpyro.plate("points", x.shape[0]):
        c = numpyro.sample("c", dist.Categorical(logits=jnp.zeros(3)))
        numpyro.sample("x", dist.Normal(mu[c], tau**-0.5), obs=x)


def single(x: jax.Array) -> None:
    """μ ~ Normal, x_n ~ Normal(μ, 1)."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)


def local(x: jax.Array) -> None:
    """z_n ~ Normal, x_n ~ Normal(z_n, 1)."""
    with numpyro.plate("points", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


def draws(**sites: Any) -> Callable[[Any, Any, Any], None]:
    """A proposal that draws the named sites from the given distributions, or functions of the number of points."""

    def proposal(data: Any, latents: Any, model: Any) -> None:
        for name, made in sites.items():
            numpyro.sample(name, made(data["x"].shape[0]) if isinstance(made, FunctionType) else made)

    return proposal


NORMAL = dist.Normal(0.0, 1.0)
TAU = pg.Block("tau", proposal=draws(tau=dist.Gamma(1.0, 1.0)))
MU = pg.Block("mu", proposal=draws(mu=NORMAL.expand([3])), assigned_by="c")
C = pg.Block("c", proposal=draws(c=lambda n: dist.Categorical(logits=jnp.zeros((n, 3)))))
ONE = pg.Block("mu", proposal=draws(mu=NORMAL))


def build(model: Any, *blocks: pg.Block, data: Any = None, example: Any = None, ess_threshold: float = 1.0) -> pg.APG:
    return pg.APG(
        model,
        data={"x": "points"} if data is None else data,
        blocks=blocks,
        example=EXAMPLE if example is None else example,
        ess_threshold=ess_threshold,
    )


def refused_padded(message: str, *arguments: Any, **options: Any) -> None:
    """Check that the sampler is built for instances of one size, and refused for several that need padding."""
    apg = build(*arguments, **options)
    x = np.concatenate([EXAMPLE["x"], EXAMPLE["x"]])
    with pytest.raises(ValueError, match=f"instances of different sizes are padded to one, but {message}"):
        apg.sample(jax.random.key(0), [{**EXAMPLE, **options.get("example", {}), "x": x[:n]} for n in range(4, 10)])


def refused(message: str, *arguments: Any, **options: Any) -> None:
    """Check that building the sampler raises this message."""
    with pytest.raises(ValueError, match=message):
        build(*arguments, **options)
