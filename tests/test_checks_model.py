"""Errors when a sampler is built, about the model and its data: each names the site, the block and the way out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest

import popgibbs as pg
from refusals import EXAMPLE, MU, NORMAL, ONE, TAU, C, build, model, refused, single

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_a_sampler_that_meets_all_conditions_is_built() -> None:
    built = build(model, TAU, MU, C).built
    assert [partition.plates for partition in built.partitions] == [(), (), ("points",)]


def test_sampler_without_an_instance_says_so() -> None:
    apg = pg.APG(single, data={"x": "points"}, blocks=[ONE])
    with pytest.raises(ValueError, match="has not met an instance"):
        _ = apg.built


def with_param(x: jax.Array) -> None:
    numpyro.param("w", jnp.zeros(()))
    single(x)


def without_latents(x: jax.Array) -> None:
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", NORMAL, obs=x)


def with_subsample(x: jax.Array) -> None:
    with numpyro.plate("points", x.shape[0], subsample_size=2):
        numpyro.sample("mu", NORMAL)


def with_clash(x: jax.Array) -> None:
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", NORMAL)


def that_fails(x: jax.Array) -> None:
    numpyro.sample("mu", NORMAL)
    numpyro.sample("x", dist.Normal(jnp.zeros(2), 1.0).to_event(1), obs=x @ jnp.zeros((2, 2)))


def of_another_size(x: jax.Array) -> None:
    with numpyro.plate("points", 7):
        z = numpyro.sample("mu", NORMAL)
    with numpyro.plate("rest", x.shape[0]):
        numpyro.sample("x", dist.Normal(z.sum(), 1.0), obs=x)


def outside_the_plate(x: jax.Array) -> None:
    mu = numpyro.sample("mu", NORMAL)
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)
    numpyro.sample("total", dist.Normal(mu, 1.0), obs=x.sum())


def latent_outside_the_plate(x: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(x.mean(), 1.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (with_param, {}, "'w' is a numpyro.param"),
        (without_latents, {}, "the model has no latent sites"),
        (with_subsample, {}, "the plate 'points' subsamples"),
        (with_clash, {}, r"the model samples sites \['x'\] that are also names of its data arguments"),
        (that_fails, {}, r"the model fails on data of shapes \{'x': \(5,\)\}"),
        (single, {"example": {**EXAMPLE, "y": 1.0}}, r"does not accept the data \['x', 'y'\].*'y'"),
        (single, {"example": {}, "data": {}}, r"does not accept the data \[\].*'x'"),
        (single, {"data": {"x": "cows"}}, r"declares an axis of 'x' as the plate 'cows'.*only the plates \['points'\]"),
        (of_another_size, {}, "the plate 'points' has size 7 where 'x' has 5 elements"),
        (outside_the_plate, {}, "the observed site 'total' depends on 'x' but lies outside the plate 'points'"),
        (latent_outside_the_plate, {}, "the site 'mu' depends on 'x' but lies outside the plate 'points'"),
        (single, {"resample_below": 1.5}, "resample_below=1.5 is a fraction"),
        (single, {"resample_below": -0.1}, "resample_below=-0.1 is a fraction"),
        (single, {"resample_below": float("nan")}, "resample_below=nan is a fraction"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or (next(iter(value), "-") if isinstance(value, dict) else "-"),
)
def test_model_and_data_must_agree(model: Any, options: dict[str, Any], message: str) -> None:
    refused(message, model, ONE, **options)


def test_site_that_changes_with_padding_is_named() -> None:
    def centred(x: jax.Array) -> None:
        with numpyro.plate("points", x.shape[0]):
            z = numpyro.sample("z", dist.Normal(x.mean(), 1.0))
            numpyro.sample("x", dist.Normal(z, 1.0), obs=x)

    refused("the site 'z' changes when an instance is padded", centred, pg.Block("z", proposal=pg.Prior()))
