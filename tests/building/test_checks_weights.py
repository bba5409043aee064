"""The split of weights into elements, which a sampler decides when it is built."""

import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import popgibbs as pg
from popgibbs.data import complete
from popgibbs.smc import disagreement
from refusals import MU, NORMAL, TAU, C, build, draws, local, model, refused

pytestmark = pytest.mark.usefixtures("quick_compilation")


def walk(x: jax.Array) -> None:
    """Plate elements with a hidden dependence: x_n depends on z_1 + … + z_n."""
    with numpyro.plate("points", x.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("x", dist.Normal(jnp.cumsum(z), 1.0), obs=x)


DEPENDENT = r"block 'z': the elements of the plate \['points'\] are not independent.*log-probability of 'x'"


def test_elements_with_a_hidden_dependence_are_weighed_as_a_whole() -> None:
    block = pg.Block("z", proposal=draws(z=dist.Bernoulli(0.5).expand([5])))
    with pytest.warns(UserWarning, match=f"{DEPENDENT}.*weighed as a whole"):
        apg = build(walk, block, data={"x": (None,)})
    assert apg.built.partitions[0].whole


def test_elements_with_a_hidden_dependence_are_enumerated_together() -> None:
    apg = build(walk, pg.Block("z", proposal=pg.Enumerated()), data={"x": (None,)})
    assert apg.built.partitions[0].whole


def coupled(data: Any, latents: Any, model: Any) -> None:
    numpyro.sample("z", dist.MultivariateNormal(jnp.zeros(5), jnp.eye(5) + 0.5))


def test_proposal_that_does_not_split_is_weighed_as_a_whole() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apg = build(local, pg.Block("z", proposal=coupled), data={"x": (None,)})
    assert apg.built.partitions[0].whole


def test_independent_elements_are_weighed_separately() -> None:
    apg = build(local, pg.Block("z", proposal=draws(z=NORMAL.expand([5]))), data={"x": (None,)})
    assert apg.built.partitions[0].plates == ("points",)


def means(by: str, proposal: Any = None) -> pg.Block:
    return pg.Block("mu", proposal=proposal or draws(mu=NORMAL.expand([3])), assigned_by=by)


def pair(x: jax.Array) -> None:
    """Two components, three labels, and a factor that no label routes."""
    with numpyro.plate("clusters", 2):
        mu = numpyro.sample("mu", NORMAL)
    with numpyro.plate("points", x.shape[0]):
        c = numpyro.sample("c", dist.Categorical(logits=jnp.zeros(3)))
        d = numpyro.sample("d", dist.Bernoulli(0.5))
        numpyro.sample("x", dist.Normal(mu[jnp.minimum(c, d)], 1.0), obs=x)
    numpyro.sample("total", dist.Normal(mu.sum(), 1.0), obs=jnp.zeros(()))


def cumulative(x: jax.Array) -> None:
    """Components with a hidden dependence: point n depends on μ_1 + … + μ_c."""
    with numpyro.plate("clusters", 3):
        mu = numpyro.sample("mu", NORMAL)
    with numpyro.plate("points", x.shape[0]):
        c = numpyro.sample("c", dist.Categorical(logits=jnp.zeros(3)))
        numpyro.sample("x", dist.Normal(jnp.cumsum(mu)[c], 1.0), obs=x)


TWO = pg.Block("c", "d", proposal=pg.Prior())
JOINT = draws(mu=dist.MultivariateNormal(jnp.zeros(3), jnp.eye(3) + 0.5))


@pytest.mark.parametrize(
    ("model", "blocks", "message"),
    [
        (
            model,
            [TAU, means("tau"), C],
            "block 'mu': assigned_by='tau' must name a finite discrete latent site of another block",
        ),
        (model, [TAU, means("nu"), C], "block 'mu': assigned_by='nu' must name a finite discrete"),
        (model, [TAU, means("x"), C], "block 'mu': assigned_by='x' must name a finite discrete"),
        (
            model,
            [MU, C, pg.Block("tau", proposal=pg.Prior(), assigned_by="c")],
            r"block 'tau': assigned_by='c' needs all sites of the block in one plate.*their common plates are \[\]",
        ),
        (
            pair,
            [TWO, pg.Block("mu", proposal=pg.Prior(), assigned_by="c")],
            r"block 'mu': assigned_by='c' takes the values \(0, 1, 2\), which are not the 2 components of 'clusters'",
        ),
        (
            pair,
            [TWO, pg.Block("mu", proposal=pg.Prior(), assigned_by="d")],
            "block 'mu': assigned_by='d': 'total' depends on the block but is outside the plates of 'd'",
        ),
        (
            cumulative,
            [means("c"), C],
            r"block 'mu': the elements of the plate \['clusters'\] are not indep.*remove assigned_by='c'",
        ),
        (
            model,
            [TAU, means("c", JOINT), C],
            "block 'mu': assigned_by='c' weighs each component separately, but the proposal's log-probabilities do not",
        ),
    ],
    ids=["continuous", "unknown", "observed", "no-plate", "values", "outside", "dependent", "joint-proposal"],
)
def test_assigned_by_needs_components_that_a_site_names(model: Any, blocks: list[pg.Block], message: str) -> None:
    refused(message, model, *blocks)


class SharpPlaces(eqx.Module):
    """A proposal whose log-density is a small difference of large numbers."""

    def __call__(self, data, latents, model):
        share = 0.1 + 0.8 * jax.nn.sigmoid(data["x"])
        numpyro.sample("h", dist.Beta(3000 * share, 3000 * (1 - share)))


def repelled(x: jax.Array) -> None:
    """Points of an undeclared plate that are rarely close to each other."""
    with numpyro.plate("points", 2):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        near = jnp.sum(jnp.abs(z[:, None] - z) < 0.01, axis=1) - 1
        numpyro.factor("apart", -20.0 * near)
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


def test_a_dependence_that_shows_only_where_elements_coincide_is_detected() -> None:
    near_x = pg.Block("z", proposal=draws(z=dist.Normal(jnp.zeros(2), 0.8)))
    with pytest.warns(UserWarning, match=r"block 'z': the elements.*not independent.*'apart'.*weighed as a whole"):
        apg = build(repelled, near_x, data={}, example={"x": np.array([0.3, -0.2], np.float32)})
    assert apg.built.partitions[0].whole


def near_points(data: Any, latents: Any, model: Any) -> None:
    numpyro.sample("z", dist.Normal(data["x"], 1.0))


class Distant(eqx.Module):
    """Points that depend on each other only above 50."""

    def __call__(self, x: jax.Array) -> None:
        with numpyro.plate("points", x.shape[0]):
            z = numpyro.sample("z", dist.Normal(0.0, 3.0))
            numpyro.factor("far", -0.1 * jnp.sum((z[:, None] > 50.0) & (z > 50.0), axis=1))
            numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


def test_a_dependence_that_the_build_cannot_detect_is_found_at_the_end() -> None:
    """The points of the example are independent; those of another instance are not."""
    example = {"x": np.array([0.3, -1.2, 2.0, 0.7, 1.1], np.float32)}
    block = pg.Block("z", proposal=near_points, move=pg.Metropolis())
    apg = build(Distant(), block, data={"x": (None,)}, example=example)
    assert apg.built.partitions[0].plates == ("points",)
    apg.sample(jax.random.key(0), [example], num_sweeps=3)
    far = {"x": np.array([49.0, 51.0, 50.5, 49.5, 50.0], np.float32)}
    with pytest.raises(ValueError, match=r"block 'z': the elements of the plate \['points'\] are not.*instance 1.*'far'"):
        apg.sample(jax.random.key(0), [example, far], num_sweeps=3)


def shifted(x: jax.Array, flag: jax.Array) -> None:
    """Points that depend on each other only in flagged instances, and a common location that is always recomputed."""
    mu = numpyro.sample("mu", NORMAL)
    with numpyro.plate("points", x.shape[0]):
        z = numpyro.sample("z", NORMAL)
        numpyro.sample("x", dist.Normal(mu + z + flag * jnp.roll(z, 1), 1.0), obs=x)


def near_half(data: Any, latents: Any, model: Any) -> None:
    numpyro.sample("z", dist.Normal(data["x"] / 2, 0.8))


def test_a_dependence_is_found_although_a_later_block_recomputes_the_factor() -> None:
    x = np.array([0.3, -1.2, 2.0, 0.7], np.float32)
    blocks = [
        pg.Block("z", proposal=near_half, move=pg.Metropolis()),
        pg.Block("mu", proposal=draws(mu=NORMAL), move=pg.HMC(step_size=0.3, num_steps=2)),
    ]
    apg = build(shifted, *blocks, data={"x": (None,)}, example={"x": x, "flag": np.float32(0)})
    assert apg.built.partitions[0].plates == ("points",)
    with pytest.raises(ValueError, match=r"block 'z': the elements of the plate \['points'\] are not.*'x'"):
        apg.sample(jax.random.key(0), [{"x": x, "flag": np.float32(1)}], num_sweeps=5)


def test_differences_of_a_tenth_of_a_nat_are_suspicious_at_any_magnitude() -> None:
    assert disagreement(jnp.float32(-560.0), jnp.float32(-560.1)) > 1
    assert disagreement(jnp.float32(-560.0), jnp.float32(-560.005)) < 1
    assert disagreement(jnp.float32(-jnp.inf), jnp.float32(-jnp.inf)) == 0
    assert disagreement(jnp.float32(-jnp.inf), jnp.float32(-1.0)) == jnp.inf
    assert disagreement(jnp.float32(jnp.nan), jnp.float32(-1.0)) == jnp.inf


def large_counts(x: jax.Array) -> None:
    """Log-probabilities of a few nats that are differences of numbers near ten million."""
    with numpyro.plate("points", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Poisson(1e6 * jnp.exp(1e-3 * z)), obs=x)


def test_rounding_is_not_mistaken_for_a_stale_log_probability() -> None:
    apg = pg.APG(large_counts, data={"x": "points"}, blocks=[pg.Block("z", proposal=pg.Prior(), move=pg.Metropolis())])
    x = np.random.default_rng(0).poisson(1e6, size=(20, 4)).astype(np.int32)
    apg.sample(jax.random.key(0), {"x": x}, num_sweeps=3)


@pytest.mark.parametrize("shape", [(5, 8), (6, 6)])
@pytest.mark.parametrize("outer", ["docs", "words"])
def test_components_named_from_two_plates_are_credited_with_their_own_entries(outer: str, shape: tuple[int, int]) -> None:
    def topics(x: jax.Array) -> None:
        docs, words = numpyro.plate("docs", x.shape[0], dim=-2), numpyro.plate("words", x.shape[1], dim=-1)
        with numpyro.plate("topics", 3):
            mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        with docs if outer == "docs" else words, words if outer == "docs" else docs:
            z = numpyro.sample("z", dist.Categorical(logits=jnp.zeros(3)))
            numpyro.sample("x", dist.Normal(mu[z], 1.0), obs=x)

    generator = np.random.default_rng(0)
    example = {"x": generator.normal(size=shape).astype(np.float32)}
    blocks = [
        pg.Block("mu", proposal=pg.Prior(), move=pg.Metropolis(), assigned_by="z"),
        pg.Block("z", proposal=pg.Enumerated()),
    ]
    sampler = build(topics, *blocks, data={"x": ("docs", "words")}, example=example).built
    assert sampler.partitions[0].plates == ("topics",)
    target = sampler.target(complete(example, {"x": ("docs", "words")}))
    latents = {"mu": jnp.array([-3.0, 0.0, 3.0]), "z": jnp.asarray(generator.integers(0, 3, size=shape))}
    log_probs = target.log_probs(latents)["x"]
    credited = sampler.partitions[0].reduce({"x": log_probs}, target.plate_sizes, latents)
    exact = [np.sum(np.asarray(log_probs)[np.asarray(latents["z"]) == k]) for k in range(3)]
    np.testing.assert_allclose(credited, exact, rtol=1e-5)
    elements = jnp.arange(3.0)
    laid = sampler.partitions[0].spread(elements, "x", target.plate_sizes, latents)
    np.testing.assert_array_equal(laid, elements[latents["z"]])


def varying(x: jax.Array, g: jax.Array) -> None:
    with numpyro.plate("groups", 2):
        alpha = numpyro.sample("alpha", NORMAL)
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(alpha[g], 1.0), obs=x)


def test_a_block_that_an_index_array_makes_whole_warns() -> None:
    example = {"x": np.ones(5, np.float32), "g": np.array([0, 1, 1, 0, 1])}
    block = pg.Block("alpha", proposal=draws(alpha=NORMAL.expand([2])))
    with pytest.warns(UserWarning, match=r"block 'alpha': its elements in the plate 'groups' are weighed together.*'x'"):
        apg = build(varying, block, data={"x": "points", "g": "points"}, example=example)
    assert apg.built.partitions[0].whole


def test_rounding_is_not_mistaken_for_dependence():
    def places(x):
        with numpyro.plate("points", x.shape[0]):
            h = numpyro.sample("h", dist.Beta(1.0, 1.0))
            numpyro.sample("x", dist.Normal(h, 0.1), obs=x)

    apg = pg.APG(places, data={"x": "points"}, blocks=[pg.Block("h", proposal=SharpPlaces())])
    sampler = apg.check({"x": np.random.default_rng(0).normal(size=600).astype(np.float32)})
    assert not sampler.partitions[0].whole
