"""The paper's networks (appendix F.2): pooled statistics s_n ⊗ t_n for centres, Categorical and Beta for points."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Key

from popgibbs._typing import Values
from popgibbs.data import Data
from popgibbs.paper.dmm.model import CENTRE_SCALE, NUM_CLUSTERS
from popgibbs.statistics import Beta, Categorical, Offsets, pick, pointwise, softmax_of_few

HIDDEN = 32


def network(num_inputs: int, num_outputs: int, hidden: int, key: Key[Array, ""]) -> eqx.nn.MLP:
    return eqx.nn.MLP(num_inputs, num_outputs, hidden, 1, activation=jnp.tanh, key=key)


class Statistics(eqx.Module):
    """The paper's statistics Σ s_n ⊗ t_n / Σ t_n, then a network from each cluster's column to its Normal."""

    value: eqx.nn.MLP
    share: eqx.nn.MLP
    update: eqx.nn.MLP

    def __init__(self, num_inputs: int, *, key: Key[Array, ""]):
        key_value, key_share, key_update = jax.random.split(key, 3)
        self.value = network(num_inputs, 8, HIDDEN, key_value)
        self.share = network(num_inputs, NUM_CLUSTERS, HIDDEN, key_share)
        self.update = network(8 + 4, 4, 2 * HIDDEN, key_update)

    def __call__(self, data: Data, *inputs: Array) -> dist.Distribution:
        mask = data.mask["points"]
        values = pointwise(self.value, *inputs)
        shares = jnp.where(mask[:, None], softmax_of_few(pointwise(self.share, *inputs)), 0.0)
        pooled = shares.T @ values / jnp.sum(shares, axis=0)[:, None]
        prior = jnp.broadcast_to(jnp.array([0.0, 0.0, CENTRE_SCALE, CENTRE_SCALE]), (NUM_CLUSTERS, 4))
        loc, log_scale = jnp.split(pointwise(self.update, pooled, prior), 2, axis=-1)
        return dist.Normal(loc, jnp.exp(log_scale))


class Centres(eqx.Module):
    """q(μ | x, c, h), and q(μ | x) for the first draw."""

    statistics: Statistics
    first: Statistics

    def __init__(self, *, key: Key[Array, ""]):
        key_statistics, key_first = jax.random.split(key)
        self.statistics = Statistics(2 + NUM_CLUSTERS + 1, key=key_statistics)
        self.first = Statistics(2, key=key_first)

    def __call__(self, data: Data, latents: Values, model: Any) -> None:
        owned = jax.nn.one_hot(latents["c"], NUM_CLUSTERS)
        numpyro.sample("mu", self.statistics(data, data["x"], owned, latents["h"][:, None]).to_event(1))

    def initial(self, data: Data, latents: Values, model: Any) -> None:
        numpyro.sample("mu", self.first(data, data["x"]).to_event(1))


class Points(eqx.Module):
    """q(c, h | x, μ): a network on every x_n − μ_m for the assignment, one on x_n − μ_c for the place on the curve."""

    cluster: Offsets
    place: eqx.nn.MLP

    def __init__(self, *, key: Key[Array, ""]):
        key_cluster, key_place = jax.random.split(key)
        self.cluster = Offsets(2, HIDDEN, 1, key=key_cluster)
        self.place = network(2, 2, 2 * HIDDEN, key_place)

    def __call__(self, data: Data, latents: Values, model: Any) -> None:
        x, mu = data["x"], latents["mu"]
        logits = jnp.stack([logit for (logit,) in self.cluster(x, mu)], axis=-1)
        c: Any = numpyro.sample("c", Categorical(logits).distribution())
        log_a, log_b = jnp.unstack(pointwise(self.place, x - pick(mu, c)), axis=-1)
        numpyro.sample("h", Beta(jnp.exp(log_a), jnp.exp(log_b)).distribution())
