"""How weights are split among elements, as a sampler finds out when it is built."""

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
from refusals import MU, NORMAL, TAU, C, build, draws, local, model, refused

pytestmark = pytest.mark.usefixtures("quick_compilation")


def walk(x: jax.Array) -> None:
    """Plate elements that are secretly dependent: x_n sees z_1 + … + z_n."""
    with numpyro.plate("points", x.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("x", dist.Normal(jnp.cumsum(z), 1.0), obs=x)


DEPENDENT = r"block 'z': the elements of the plate \['points'\] are not independent.*log-probability of 'x'"


def test_secretly_dependent_elements_are_weighed_as_a_whole() -> None:
    block = pg.Block("z", proposal=draws(z=dist.Bernoulli(0.5).expand([5])))
    with pytest.warns(UserWarning, match=f"{DEPENDENT}.*weighed as a whole"):
        apg = build(walk, block, data={"x": (None,)})
    assert apg.built.partitions[0].whole


def test_secretly_dependent_elements_cannot_be_enumerated() -> None:
    refused(
        f"{DEPENDENT}.*Enumerated would not be exact", walk, pg.Block("z", proposal=pg.Enumerated()), data={"x": (None,)}
    )


def coupled(data: Any, latents: Any, model: Any) -> None:
    numpyro.sample("z", dist.MultivariateNormal(jnp.zeros(5), jnp.eye(5) + 0.5))


def test_proposal_that_does_not_split_is_weighed_as_a_whole() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apg = build(local, pg.Block("z", proposal=coupled), data={"x": (None,)})
    assert apg.built.partitions[0].whole


def test_independent_elements_are_weighed_by_themselves() -> None:
    apg = build(local, pg.Block("z", proposal=draws(z=NORMAL.expand([5]))), data={"x": (None,)})
    assert apg.built.partitions[0].plates == ("points",)


def means(by: str, proposal: Any = None) -> pg.Block:
    return pg.Block("mu", proposal=proposal or draws(mu=NORMAL.expand([3])), by=by)


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
    """Components that are secretly dependent: point n sees μ_1 + … + μ_c."""
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
        (model, [TAU, means("tau"), C], "block 'mu': by='tau' must name a finite discrete latent site of another block"),
        (model, [TAU, means("nu"), C], "block 'mu': by='nu' must name a finite discrete"),
        (model, [TAU, means("x"), C], "block 'mu': by='x' must name a finite discrete"),
        (
            model,
            [MU, C, pg.Block("tau", proposal=pg.Prior(), by="c")],
            r"block 'tau': by='c' needs all sites of the block in one plate of components; they share \[\]",
        ),
        (
            pair,
            [TWO, pg.Block("mu", proposal=pg.Prior(), by="c")],
            r"block 'mu': by='c' takes the values \(0, 1, 2\), which are not the 2 components of 'clusters'",
        ),
        (
            pair,
            [TWO, pg.Block("mu", proposal=pg.Prior(), by="d")],
            "block 'mu': by='d': 'total' depends on the block but lies outside the plates of 'd'",
        ),
        (cumulative, [means("c"), C], r"block 'mu': the elements of the plate \['clusters'\] are not indep.*drop by='c'"),
        (
            model,
            [TAU, means("c", JOINT), C],
            "block 'mu': by='c' weighs each component by itself, but the proposal's log-probabilities do not split",
        ),
    ],
    ids=["continuous", "unknown", "observed", "no-plate", "values", "outside", "dependent", "joint-proposal"],
)
def test_by_needs_components_that_a_site_names(model: Any, blocks: list[pg.Block], message: str) -> None:
    refused(message, model, *blocks)


class SharpPlaces(eqx.Module):
    """A proposal whose log-density is a small difference of large numbers."""

    def __call__(self, data, latents, model):
        share = 0.1 + 0.8 * jax.nn.sigmoid(data["x"])
        numpyro.sample("h", dist.Beta(3000 * share, 3000 * (1 - share)))


def test_rounding_is_not_taken_for_dependence():
    def places(x):
        with numpyro.plate("points", x.shape[0]):
            h = numpyro.sample("h", dist.Beta(1.0, 1.0))
            numpyro.sample("x", dist.Normal(h, 0.1), obs=x)

    apg = pg.APG(places, data={"x": "points"}, blocks=[pg.Block("h", proposal=SharpPlaces())])
    sampler = apg.check({"x": np.random.default_rng(0).normal(size=600).astype(np.float32)})
    assert not sampler.partitions[0].whole
