"""Small models and proposals that the tests share."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array

import popgibbs as pg
from popgibbs._typing import Values
from popgibbs.data import Data
from popgibbs.moves import Move
from popgibbs.statistics import mean_pool, pool


def conditional_at(sampler: Any, index: int, data: Data, latents: Values) -> Any:
    """The conditional of a block at the latents of one particle."""
    return sampler.blocks[index].conditional(sampler.context(index, data), latents)


AXES: dict[str, tuple[str | None, ...]] = {"x": ("points",)}


# One number behind all points: the smallest model that can be trained --------------------------------------------------


def located(x: Array) -> None:
    """μ ~ Normal(0, 1), x_n ~ Normal(μ, 1)."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)


class Location(eqx.Module):
    """q(μ | x) = Normal(a Σx / (N + 1), e^s / √(N + 1)); exact at a = 1, s = 0."""

    a: Array
    s: Array

    def __call__(self, data: Data, latents: Values, model: Any) -> None:
        count = jnp.sum(data.mask["points"]) + 1.0
        loc = self.a * pool(data["x"], data.mask["points"]) / count
        numpyro.sample("mu", dist.Normal(loc, jnp.exp(self.s) * count**-0.5))


def located_sampler(proposal: Any = None, example: Any = None, **options: Any) -> pg.APG:
    proposal = proposal or Location(jnp.float32(0.5), jnp.float32(0.5))
    return pg.APG(located, data={"x": "points"}, blocks=[pg.Block("mu", proposal=proposal)], example=example, **options)


# Points around a common centre: every conditional is Gaussian and known ---------------------------------------------


def centred(x: Array) -> None:
    """μ ~ Normal(0, 1), z_n ~ Normal(μ, 1), x_n ~ Normal(z_n, 1), all in the plane."""
    mu = numpyro.sample("mu", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("points", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(mu, 1.0).to_event(1))
        numpyro.sample("x", dist.Normal(z, 1.0).to_event(1), obs=x)


class Centre(eqx.Module):
    """q(μ | z) = Normal(a Σz / (N + 1), e^s / √(N + 1)); exact at a = 1, s = 0. The first draw has no parameters."""

    a: Array
    s: Array

    def __call__(self, data: Data, latents: Values, model: Any) -> None:
        count = jnp.sum(data.mask["points"]) + 1.0
        loc = self.a * pool(latents["z"], data.mask["points"]) / count
        numpyro.sample("mu", dist.Normal(loc, jnp.exp(self.s) * count**-0.5).to_event(1))

    def initial(self, data: Data, latents: Values, model: Any) -> None:
        precision = 0.5 * jnp.sum(data.mask["points"]) + 1.0
        loc = 0.5 * pool(data["x"], data.mask["points"]) / precision
        numpyro.sample("mu", dist.Normal(loc, 1.2 * precision**-0.5).to_event(1))


class Points(eqx.Module):
    """q(z_n | x_n, μ) = Normal(a x_n + b μ, e^s); exact at a = b = 1/2, s = −log √2."""

    a: Array
    b: Array
    s: Array

    def __call__(self, data: Data, latents: Values, model: Any) -> None:
        loc = self.a * data["x"] + self.b * latents["mu"]
        numpyro.sample("z", dist.Normal(loc, jnp.exp(self.s)).to_event(1))


def centred_sampler(move: Move | None = None, **options: Any) -> pg.APG:
    """A sampler of `centred` with untrained proposals."""
    number = jnp.float32
    return pg.APG(
        centred,
        data={"x": "points"},
        blocks=[
            pg.Block("mu", proposal=Centre(number(0.8), number(0.3))),
            pg.Block("z", proposal=Points(number(0.3), number(0.3), number(0.0)), move=move),
        ],
        **options,
    )


def ragged(sizes: tuple[int, ...], seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Instances of `centred` of the given sizes."""
    generator = np.random.default_rng(seed)
    return [{"x": generator.normal(size=(size, 2)).astype(np.float32)} for size in sizes]


# Points in two clusters of a common width: blocks that split in each of the three ways ----------------------------------


class Clusters(eqx.Module):
    """σ ~ LogNormal, μ_k ~ Normal(loc, 2), c_n ~ Categorical(logits), x_n ~ Normal(μ_c, σ e^noise)."""

    loc: Array
    logits: Array
    noise: Array

    def __call__(self, x: Array) -> None:
        sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 0.5))
        with numpyro.plate("clusters", 2):
            mu = numpyro.sample("mu", dist.Normal(self.loc, 2.0))
        with numpyro.plate("points", x.shape[0]):
            c = numpyro.sample("c", dist.Categorical(logits=self.logits))
            numpyro.sample("x", dist.Normal(mu[c], sigma * jnp.exp(self.noise)), obs=x)


def clusters_model() -> Clusters:
    return Clusters(loc=jnp.float32(0.1), logits=jnp.array([0.2, -0.1]), noise=jnp.float32(0.1))


def clusters(x: Array) -> None:
    """The same density as a plain function without parameters."""
    clusters_model()(x)


class Width(eqx.Module):
    """q(σ | x, μ, c)."""

    a: Array
    b: Array

    def __call__(self, data: Data, latents: Values, model: Any) -> None:
        self._sample(mean_pool((data["x"] - latents["mu"][latents["c"]]) ** 2, data.mask["points"]))

    def initial(self, data: Data, latents: Values, model: Any) -> None:
        self._sample(mean_pool(data["x"] ** 2, data.mask["points"]))

    def _sample(self, squares: Array) -> None:
        numpyro.sample("sigma", dist.LogNormal(self.a * jnp.log(squares + 0.1), jnp.exp(self.b)))


class Means(eqx.Module):
    """q(μ_k | x, c, σ), close to exact at a = 1, b = 0."""

    a: Array
    b: Array
    first: Array

    def __call__(self, data: Data, latents: Values, model: Any) -> None:
        mine = (latents["c"][:, None] == jnp.arange(2)) & data.mask["points"][:, None]
        pooled = jnp.sum(jnp.where(mine, data["x"][:, None], 0.0), axis=0) / latents["sigma"] ** 2
        precision = jnp.sum(mine, axis=0) / latents["sigma"] ** 2 + 0.25
        numpyro.sample("mu", dist.Normal(self.a * pooled / precision, jnp.exp(self.b) * precision**-0.5))

    def initial(self, data: Data, latents: Values, model: Any) -> None:
        centre = mean_pool(data["x"], data.mask["points"])
        numpyro.sample("mu", dist.Normal(centre + self.first, 1.5))


class Labels(eqx.Module):
    """q(c_n | x_n, μ, σ), close to exact at a = 1."""

    a: Array

    def __call__(self, data: Data, latents: Values, model: Any) -> None:
        logits = -0.5 * self.a * ((data["x"][:, None] - latents["mu"]) / latents["sigma"]) ** 2
        numpyro.sample("c", dist.Categorical(logits=logits))


def clusters_sampler(model: Any = clusters, move: Move | None = None, **options: Any) -> pg.APG:
    """Blocks in which σ is weighed as a whole, μ by cluster and c by point."""
    number = jnp.float32
    return pg.APG(
        model,
        data={"x": "points"},
        blocks=[
            pg.Block("sigma", proposal=Width(number(0.4), number(-0.7)), move=move),
            pg.Block("mu", proposal=Means(number(0.9), number(0.1), jnp.array([-0.7, 0.8])), move=move, assigned_by="c"),
            pg.Block("c", proposal=Labels(number(0.7)), move=move),
        ],
        **options,
    )


# Imperfect proposals for the mixture of two clusters whose posterior `oracles` knows --------------------------------


def vague_means(data: Data, latents: Values, model: Any) -> None:
    numpyro.sample("mu", dist.Normal(jnp.array([0.5, -0.5]), 1.5))


def vague_labels(data: Data, latents: Values, model: Any) -> None:
    numpyro.sample("c", dist.Categorical(logits=jnp.stack([0.5 * data["x"], jnp.zeros_like(data["x"])], axis=-1)))
