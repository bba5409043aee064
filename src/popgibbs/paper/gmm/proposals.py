"""Neural proposals for the mixture."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Key

from popgibbs._typing import Values
from popgibbs.data import Data
from popgibbs.paper.gmm.model import NUM_CLUSTERS, PRIOR
from popgibbs.statistics import (
    Categorical,
    NormalGamma,
    Pairwise,
    conjugate_normal_gamma,
    pointwise,
    softmax_of_few,
    spread_points,
)


class Statistics(eqx.Module):
    """The paper's pointwise statistics: s_n ≈ x_n and t_n ≈ the assignment, one linear layer each."""

    value: eqx.nn.Linear
    share: eqx.nn.Linear

    def __init__(self, num_inputs: int, *, key: Key[Array, ""]):
        key_value, key_share = jax.random.split(key)
        self.value = eqx.nn.Linear(num_inputs, 2, key=key_value)
        self.share = eqx.nn.Linear(num_inputs, NUM_CLUSTERS, key=key_share)

    def __call__(self, data: Data, *inputs: Array) -> NormalGamma:
        """The conjugate update with the pooled statistics."""
        values = pointwise(self.value, data["x"], *inputs)
        shares = softmax_of_few(pointwise(self.share, data["x"], *inputs))
        return conjugate_normal_gamma(PRIOR, values, shares, data.mask["points"])


class Seeded(eqx.Module):
    """An initial proposal that breaks the symmetry between clusters: seeds, then a few rounds of soft assignment.

    Each particle draws its own seeds, so a population starts from several guesses and the weights choose among them. It
    has no parameters, so the other proposals see good samples from the first training step on.
    """

    num_rounds: int = eqx.field(static=True, default=5)

    def __call__(self, data: Data) -> NormalGamma:
        x, mask = data["x"], data.mask["points"]
        key: Any = numpyro.prng_key()
        seeds = spread_points(key, x, mask, NUM_CLUSTERS)

        def assign(clusters: tuple[Array, Array]) -> NormalGamma:
            mu, tau = clusters
            logits = -0.5 * jnp.sum((x[:, None] - mu) ** 2 * tau - jnp.log(tau), axis=-1)
            return conjugate_normal_gamma(PRIOR, x, jax.nn.softmax(logits, axis=-1), mask)

        def a_round(_: int, clusters: tuple[Array, Array]) -> tuple[Array, Array]:
            posterior = assign(clusters)
            return posterior.loc, posterior.concentration / posterior.rate

        start = (seeds, jnp.ones_like(seeds))
        return assign(jax.lax.fori_loop(0, self.num_rounds - 1, a_round, start))


class Globals(eqx.Module):
    """q(μ, τ | x, c), and q(μ, τ | x) for the first draw."""

    statistics: Statistics
    first: Any

    def __init__(self, first: Any, *, key: Key[Array, ""]):
        self.statistics = Statistics(2 + NUM_CLUSTERS, key=key)
        self.first = first

    def update(self, data: Data, c: Array) -> NormalGamma:
        return self.statistics(data, jax.nn.one_hot(c, NUM_CLUSTERS))

    def __call__(self, data: Data, latents: Values, model: Any) -> None:
        _sample(self.update(data, latents["c"]))

    def initial(self, data: Data, latents: Values, model: Any) -> None:
        _sample(self.first(data))


class Assignments(eqx.Module):
    """q(c | x, μ, τ): a network on every pair of a point and a cluster."""

    local: Pairwise

    def __init__(self, *, key: Key[Array, ""]):
        self.local = Pairwise(2, 4, 32, key=key)

    def __call__(self, data: Data, latents: Values, model: Any) -> None:
        clusters = jnp.concatenate([latents["mu"], latents["tau"]], axis=-1)
        numpyro.sample("c", Categorical(self.local(data["x"], clusters)).distribution())


class Joint(eqx.Module):
    """q(μ, τ, c | x): the parts of the first draw, as the proposal of a single block."""

    globals: Globals
    assignments: Assignments

    def __call__(self, data: Data, latents: Values, model: Any) -> None:
        self.assignments(data, _sample(self.globals.first(data)), model)


class ExactGlobals(eqx.Module):
    """The exact conditional p(μ, τ | x, c), which `Globals` approaches as it learns."""

    first: Any = None  # unless another sampler draws the first particles

    def __call__(self, data: Data, latents: Values, model: Any) -> None:
        _sample(exact_globals(data, latents["c"]))

    def initial(self, data: Data, latents: Values, model: Any) -> None:
        _sample(self.first(data))


def exact_globals(data: Data, c: Array) -> NormalGamma:
    """p(μ, τ | x, c) by conjugacy."""
    return conjugate_normal_gamma(PRIOR, data["x"], jax.nn.one_hot(c, NUM_CLUSTERS), data.mask["points"])


def _sample(posterior: NormalGamma) -> Values:
    tau: Any = numpyro.sample("tau", posterior.precision().to_event(1))
    mu: Any = numpyro.sample("mu", posterior.mean(tau).to_event(1))
    return {"tau": tau, "mu": mu}
