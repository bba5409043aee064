"""Proposals that see the decoder, so that they need not learn it a second time."""

from functools import reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Key

from popgibbs._typing import Values
from popgibbs.model import ProposalData
from popgibbs.paper.dmm.model import CENTRE_SCALE, NUM_CLUSTERS
from popgibbs.statistics import Beta, Categorical, Offsets, choose, pool

REACH = 0.5  # points nearer than this to a curve count as explained by it
GREED = 100.0  # a candidate that explains a further hundredth of the points is chosen e times as often


class Centres(eqx.Module):
    """q(μ | x, c, h): the conjugate update with the residuals x_n − g(h_n), with a learned scale.

    The first draw is centred at seeds.
    """

    log_scale: Array
    log_first_scale: Array

    def __init__(self) -> None:
        self.log_scale = jnp.zeros(())
        self.log_first_scale = jnp.log(0.1)

    def __call__(self, data: ProposalData, latents: Values, model: Any) -> None:
        mask = data.mask["points"]
        owned = jax.nn.one_hot(latents["c"], NUM_CLUSTERS)
        rest = data["x"] - model.decode(latents["h"])
        variance = noise_variance(data, model)
        precision = (pool(owned, mask) / variance + CENTRE_SCALE**-2)[:, None]
        loc = pool(owned[:, :, None] * rest[:, None, :], mask) / variance / precision
        numpyro.sample("mu", dist.Normal(loc, jnp.exp(self.log_scale) * precision**-0.5).to_event(1))

    def initial(self, data: ProposalData, latents: Values, model: Any) -> None:
        numpyro.sample("mu", dist.Normal(seeds(data, model), jnp.exp(self.log_first_scale)).to_event(1))


def noise_variance(data: ProposalData, model: Any) -> Any:
    """The model's noise variance, or the larger one that a tempered likelihood is equivalent to."""
    return model.noise**2 if data.beta is None else model.noise**2 / data.beta


def seeds(
    data: ProposalData, model: Any, num_candidates: int = 256, num_places: int = 24, num_rounds: int = 3
) -> Float[Array, "cluster 2"]:
    """Centres whose curves together explain the points, chosen one after another at random, then moved to the points.

    A candidate is a centre that puts some place of the decoder's curve on some point. It is chosen by how much closer the
    points are to its curve than to the curves before it. Candidates are the same for all particles, so that their
    distances are computed once per instance; each particle makes its own choice among them.
    """
    x, mask = data["x"], data.mask["points"]
    curve = model.decode((jnp.arange(num_places) + 0.5) / num_places)
    reach = jnp.sqrt(REACH**2 + noise_variance(data, model))
    key_point, key_place = jax.random.split(jax.random.key(0))
    point = jnp.floor(jax.random.uniform(key_point, (num_candidates,)) * jnp.sum(mask)).astype(int)
    place = jax.random.randint(key_place, (num_candidates,), 0, num_places)
    candidates = x[point] - curve[place]

    def nearest(least: Array, place: Array) -> tuple[Array, None]:
        return jnp.minimum(least, _squared(*_between(x - place, candidates))), None

    # A running minimum over places: the array over candidates, points and places is never materialised.
    squared, _ = jax.lax.scan(nearest, jnp.full((num_candidates, x.shape[0]), jnp.inf), curve)
    unexplained = jnp.where(mask, jnp.minimum(squared / reach**2, 1.0), 0.0)

    def choose(left: Array, key: Array) -> tuple[Array, Array]:
        gain = jnp.sum(left - jnp.minimum(left, unexplained), axis=-1)
        chosen = jax.random.categorical(key, GREED * gain / jnp.sum(mask))
        return jnp.minimum(left, unexplained[chosen]), candidates[chosen]

    key: Any = numpyro.prng_key()
    _, centres = jax.lax.scan(choose, jnp.where(mask, 1.0, 0.0), jax.random.split(key, NUM_CLUSTERS))

    def a_round(_: int, centres: Array) -> Array:
        rest = [_between(x - centre, curve) for centre in centres]
        squared = [_squared(*of_cluster) for of_cluster in rest]
        least = reduce(jnp.minimum, [jnp.min(of_cluster, axis=0) for of_cluster in squared])
        closeness = [jnp.exp(-2 * (of_cluster - least) / reach**2) for of_cluster in squared]
        total = sum(jnp.sum(of_cluster, axis=0) for of_cluster in closeness)
        shares = [jnp.where(mask, of_cluster / total, 0.0) for of_cluster in closeness]
        moves = [
            jnp.stack([jnp.sum(share * axis) for axis in of_cluster]) / (jnp.sum(share) + 1e-3)
            for share, of_cluster in zip(shares, rest, strict=True)
        ]
        return centres + jnp.stack(moves)

    return jax.lax.fori_loop(0, num_rounds, a_round, centres)


def _between(x: Float[Array, "point 2"], origins: Float[Array, "origin 2"]) -> list[Float[Array, "origin point"]]:
    """x − origin for all pairs, one array per axis: on CPU reductions over an axis of two take many times as long."""
    return [x[:, axis] - origins[:, axis, None] for axis in range(2)]


def _squared(first: Float[Array, "*shape"], second: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return first**2 + second**2


class Points(eqx.Module):
    """q(c, h | x, μ): a network on x_n − μ_m guesses places on each curve, and the decoder scores how well they fit.

    A guess is a mixture of two Betas. Where the curve closes, h jumps from one end of its range to the other, and a
    smooth network can follow only by shifting weight from one Beta to the other.
    """

    place: Offsets
    log_width: Array

    def __init__(self, *, key: Key[Array, ""]):
        self.place = Offsets(2, 64, 5, key=key)
        self.log_width = jnp.log(2.0)

    def __call__(self, data: ProposalData, latents: Values, model: Any) -> None:
        x, mu = data["x"], latents["mu"]
        guesses = self.place(x, mu)
        scale = -0.5 * jnp.exp(-2 * self.log_width) / noise_variance(data, model)
        fits = [scale * self.misfit(model, x - centre, guess) for centre, guess in zip(mu, guesses, strict=True)]
        c: Any = numpyro.sample("c", Categorical(jnp.stack(fits, axis=-1)).distribution())
        log_odds, *log_betas = (choose(columns, c) for columns in zip(*guesses, strict=True))
        a, b = jnp.exp(jnp.stack(log_betas, axis=-1).reshape(-1, 2, 2)).transpose(2, 0, 1)
        which = Categorical(jnp.stack([jnp.zeros_like(log_odds), log_odds], axis=-1)).distribution()
        numpyro.sample("h", dist.MixtureSameFamily(which, Beta(a, b).distribution()))

    def misfit(self, model: Any, rest: Float[Array, "point 2"], guess: list[Array]) -> Float[Array, " point"]:
        """The squared distance of each point from the nearer of its two guesses."""
        _, log_a, log_b, log_a_other, log_b_other = guess
        places = [jax.nn.sigmoid(log_a - log_b), jax.nn.sigmoid(log_a_other - log_b_other)]
        return reduce(jnp.minimum, [_squared(*(rest - model.decode(place)).T) for place in places])
