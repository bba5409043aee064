"""Errors about the model and its data when a sampler is built, which name the site, the block and the way out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import special, stats

import popgibbs as pg
from oracles import assert_mean
from refusals import EXAMPLE, MU, NORMAL, ONE, TAU, C, build, model, refused, refused_padded, single

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_a_sampler_that_meets_all_conditions_is_built() -> None:
    built = build(model, TAU, MU, C).built
    assert [partition.plates for partition in built.partitions] == [(), ("clusters",), ("points",)]


def test_a_sampler_that_has_not_seen_an_instance_says_so() -> None:
    apg = pg.APG(single, data={"x": "points"}, blocks=[ONE])
    with pytest.raises(ValueError, match="has not seen an instance"):
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
        (of_another_size, {}, "the plate 'points' has size 7, but 'x' has 5 elements"),
        (single, {"ess_threshold": 1.5}, "ess_threshold=1.5 is a fraction"),
        (single, {"ess_threshold": -0.1}, "ess_threshold=-0.1 is a fraction"),
        (single, {"ess_threshold": float("nan")}, "ess_threshold=nan is a fraction"),
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

    refused_padded("the site 'z' changes when an instance is padded", centred, pg.Block("z", proposal=pg.Prior()))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (outside_the_plate, "the observed site 'total' depends on 'x' but is outside the plate 'points'"),
        (latent_outside_the_plate, "the site 'mu' depends on 'x' but is outside the plate 'points'"),
    ],
)
def test_sites_outside_the_plate_of_their_data_are_refused_where_instances_are_padded(model: Any, message: str) -> None:
    refused_padded(message, model, ONE)


def with_covariate(x: jax.Array, w: jax.Array) -> None:
    mu = numpyro.sample("mu", NORMAL)
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu * w, 1.0), obs=x)


@pytest.mark.parametrize("size", [3, 5])
def test_an_array_whose_axis_is_not_declared_is_named(size: int) -> None:
    """This holds whether the example is large enough for the checks or has to be padded for them."""
    example = {"x": EXAMPLE["x"][:size], "w": np.ones(size, np.float32)}
    apg = build(with_covariate, ONE, example=example)
    assert apg.built.cannot_pad is not None
    assert f"axis 0 of 'w' has {size} elements like the plate 'points'" in apg.built.cannot_pad


def centred_on_all(x: jax.Array) -> None:
    with numpyro.plate("points", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(x.mean(), 1.0))
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


def test_an_example_of_one_element_does_not_hide_effects_of_padding() -> None:
    """The mean of copies of one number does not depend on their number."""
    block = pg.Block("z", proposal=pg.Prior(), move=pg.Metropolis())
    apg = build(centred_on_all, block, example={"x": np.ones(1, np.float32)})
    x = np.arange(10, dtype=np.float32)
    with pytest.raises(ValueError, match="padded to one, but the site 'z' changes when an instance is padded"):
        apg.sample(jax.random.key(0), [{"x": x[:n]} for n in (1, 3, 4, 5, 6, 7)], num_sweeps=1)


# Models that are not refused --------------------------------------------------------------------------------------------


def of_trials(x: jax.Array, total: jax.Array) -> None:
    p = numpyro.sample("p", dist.Beta(2.0, 2.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Binomial(total, p), obs=x)


def test_counts_with_totals_from_data_have_the_evidence_of_a_beta_binomial() -> None:
    x, total = np.array([2, 0, 5]), np.array([4, 3, 7])
    apg = pg.APG(of_trials, data={"x": "points", "total": "points"}, blocks=[pg.Block("p", proposal=pg.Prior())])
    posterior = apg.sample(
        jax.random.key(0), [{"x": x, "total": total}], num_sweeps=0, num_particles=10, num_populations=2000
    )
    ways = np.sum([np.log(special.comb(n, k)) for n, k in zip(total, x, strict=True)])
    exact = ways + special.betaln(2 + x.sum(), 2 + (total - x).sum()) - special.betaln(2, 2)
    assert_mean(np.exp(posterior.log_evidence_by_sweep[0, :, 0].astype(np.float64) - exact), 1.0)


def by_table(x: jax.Array, centers: jax.Array) -> None:
    """An assignment with one value per row of a table in the data."""
    with numpyro.plate("points", x.shape[0]):
        c = numpyro.sample("c", dist.Categorical(logits=jnp.zeros(centers.shape[0])))
        numpyro.sample("x", dist.Normal(centers[c], 1.0), obs=x)


def test_an_enumeration_runs_over_the_values_of_its_own_instance() -> None:
    x, centers = np.array([0.2, -1.1, 0.8, 2.0], np.float32), np.linspace(-2, 3, 6).astype(np.float32)
    apg = pg.APG(by_table, data={"x": "points", "centers": (None,)}, blocks=[pg.Block("c", proposal=pg.Enumerated())])
    apg.check({"x": x, "centers": centers[:5]})
    posterior = apg.sample(jax.random.key(0), [{"x": x, "centers": centers}], num_sweeps=1)
    exact = np.sum(np.log(np.mean(stats.norm(centers, 1).pdf(x[:, None]), axis=1)))
    np.testing.assert_allclose(posterior.log_evidence, [exact], rtol=1e-5)


def with_change(x: jax.Array, last: jax.Array) -> None:
    """A change point whose position is bounded by data, and a mean over all points."""
    place = numpyro.sample("place", dist.DiscreteUniform(0, last))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(jnp.where(jnp.arange(x.shape[0]) < place, x.mean(), 0.0), 1.0), obs=x)


def any_place(data: Any, latents: Any, model: Any) -> None:
    numpyro.sample("place", dist.DiscreteUniform(0, data["last"]))


def test_sites_of_instances_of_one_size_may_depend_on_all_of_their_data() -> None:
    """The support depends on data, and padding would change the likelihood; the result is exact by enumeration."""
    blocks = [pg.Block("place", proposal=any_place, move=pg.Metropolis())]
    apg = pg.APG(with_change, data={"x": "points"}, blocks=blocks)
    x = np.array([1.2, 0.8, 0.9, -0.1, 0.2], np.float32)
    posterior = apg.sample(
        jax.random.key(0), [{"x": x, "last": np.int32(4)}], num_sweeps=20, num_particles=1, num_populations=4000
    )
    log_joint = [stats.norm(np.where(np.arange(5) < k, x.mean(), 0.0), 1.0).logpdf(x).sum() for k in range(5)]
    exact = np.exp(log_joint - special.logsumexp(log_joint))
    assert_mean(posterior[0]["place"][:, 0, None] == np.arange(5), exact)
