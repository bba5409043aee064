"""Errors when a sampler is built: each names the site, the block and the way out."""

import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import popgibbs as pg

pytestmark = pytest.mark.usefixtures("quick_compilation")

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
MU = pg.Block("mu", proposal=draws(mu=NORMAL.expand([3])))
C = pg.Block("c", proposal=draws(c=lambda n: dist.Categorical(logits=jnp.zeros((n, 3)))))
ONE = pg.Block("mu", proposal=draws(mu=NORMAL))


def build(model: Any, *blocks: pg.Block, data: Any = None, example: Any = None, resample_below: float = 1.0) -> pg.APG:
    return pg.APG(
        model,
        data={"x": "points"} if data is None else data,
        blocks=blocks,
        example=EXAMPLE if example is None else example,
        resample_below=resample_below,
    )


def refused(message: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(ValueError, match=message):
        build(*arguments, **options)


# The model and its data -------------------------------------------------------------------------------------------------


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


# The blocks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pg.Block(), "a Block needs the name of at least one site"),
        (lambda: pg.Block("mu", "mu"), r"the sites \['mu'\] are named twice"),
        (lambda: pg.Block("mu", pg.Prior()), "the sites of a Block are names"),
        (lambda: pg.Block("mu", move="metropolis"), "move='metropolis' is not a move"),
        (lambda: pg.Block("mu", proposal=pg.Prior), "proposal=Prior is a class"),
        (lambda: pg.Block("mu", proposal=3), "proposal=3 is not a NumPyro program"),
    ],
    ids=["empty", "repeated", "positional", "move", "class", "number"],
)
def test_block_is_checked_when_written(monkeypatch: Any, make: Callable[[], pg.Block], message: str) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside the tests
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([], "there are no blocks"),
        ([TAU, MU], r"no block updates the sites \['c'\]; add them to a Block"),
        (
            [TAU, MU, C, pg.Block("nu", proposal=pg.Prior())],
            "block 'nu' names the site 'nu', which the model does not have",
        ),
        ([TAU, MU, C, pg.Block("x", proposal=pg.Prior())], "block 'x' names the site 'x', which is observed"),
        ([pg.Block("tau"), MU, C], "block 'tau' has no proposal"),
        ([TAU, MU, pg.Block("c", move=pg.HMC(step_size=0.1))], "block 'c': HMC has no continuous site to move"),
        (
            [TAU, pg.Block("mu", move=pg.HMC(step_size=0.1)), C],
            r"block 'mu' moves \['mu'\] by HMC but nothing draws them first",
        ),
        ([pg.Block("tau", proposal=pg.Enumerated()), MU, C], r"block 'tau': Enumerated needs finite.*\['tau'\] are not"),
    ],
    ids=["none", "uncovered", "unknown", "observed", "no-proposal", "hmc-discrete", "hmc-start", "enumerated"],
)
def test_blocks_must_cover_the_model(blocks: list[pg.Block], message: str) -> None:
    refused(message, model, *blocks)


def test_prior_cannot_draw_a_site_before_its_parents() -> None:
    def chained(x: jax.Array) -> None:
        a = numpyro.sample("a", NORMAL)
        b = numpyro.sample("b", dist.Normal(a, 1.0))
        with numpyro.plate("points", x.shape[0]):
            numpyro.sample("x", dist.Normal(b, 1.0), obs=x)

    a, b = pg.Block("a", proposal=pg.Prior()), pg.Block("b", proposal=pg.Prior())
    refused(
        r"block 'b': Prior cannot draw 'b' first, because its parents \['a'\] are drawn by later blocks", chained, b, a
    )


def test_enumeration_needs_a_value_in_each_element_of_a_shared_plate() -> None:
    def counted(x: jax.Array) -> None:
        with numpyro.plate("switches", 2):
            s = numpyro.sample("s", dist.Bernoulli(0.5))
        with numpyro.plate("points", x.shape[0]):
            numpyro.sample("x", dist.Normal(s.sum(), 1.0), obs=x)

    refused(
        r"block 's': Enumerated needs 's' to have one value in each element.*the shared plates are \[\]",
        counted,
        pg.Block("s", proposal=pg.Enumerated()),
    )


def test_enumeration_in_a_declared_plate_is_accepted() -> None:
    built = build(model, TAU, MU, pg.Block("c", proposal=pg.Enumerated())).built
    assert built.partitions[2].plates == ("points",)


class Shared(eqx.Module):
    """A proposal for one site with an array."""

    name: str = eqx.field(static=True)
    array: jax.Array

    def __call__(self, data: Any, latents: Any, model: Any) -> None:
        numpyro.sample(self.name, dist.Normal(self.array, 1.0))


class Offset(eqx.Module):
    array: jax.Array

    def __call__(self, x: jax.Array) -> None:
        a, b = numpyro.sample("a", NORMAL), numpyro.sample("b", NORMAL)
        with numpyro.plate("points", x.shape[0]):
            numpyro.sample("x", dist.Normal(a + b + self.array, 1.0), obs=x)


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ((0, 1, 1), "block 'b' holds an array that block 'a' holds too"),
        ((0, 1, 0), "block 'b' holds an array that the model holds too"),
    ],
    ids=["blocks", "model"],
)
def test_an_array_has_one_owner(owners: tuple[int, int, int], message: str) -> None:
    arrays = [jnp.zeros(()), jnp.ones(())]
    model, a, b = (arrays[owner] for owner in owners)
    blocks = [pg.Block("a", proposal=Shared("a", a)), pg.Block("b", proposal=Shared("b", b))]
    refused(message, Offset(model), *blocks)


# The proposals ----------------------------------------------------------------------------------------------------------


def observing(data: Any, latents: Any, model: Any) -> None:
    numpyro.sample("tau", dist.Gamma(1.0, 1.0), obs=jnp.ones(()))


def misspelt(data: Any, latents: Any, model: Any) -> None:
    numpyro.sample("tau", dist.Gamma(1.0, latents["sigma"] if latents else 1.0))


def reads_c(data: Any, latents: Any, model: Any) -> None:
    numpyro.sample("tau", dist.Gamma(1.0 + latents["c"].sum(), 1.0))


def with_a_param(data: Any, latents: Any, model: Any) -> None:
    numpyro.sample("tau", dist.Gamma(numpyro.param("w", jnp.ones(())), 1.0))


def that_raises(data: Any, latents: Any, model: Any) -> None:
    raise RuntimeError("no such luck")


@pytest.mark.parametrize(
    ("proposal", "message"),
    [
        (draws(), r"does not sample the sites \['tau'\]"),
        (draws(tau=dist.Gamma(1.0, 1.0), nu=NORMAL), r"samples the sites \['nu'\], which are not the block's"),
        (observing, r"observes \['tau'\]; a proposal only samples"),
        (draws(tau=dist.Gamma(1.0, 1.0).expand([2])), r"draws 'tau' with shape \(2,\); the model's has shape \(\)"),
        (draws(tau=dist.Poisson(1.0)), "draws 'tau' as discrete; the model's is continuous"),
        (reads_c, "'s first draw reads 'c', which has not been drawn; define `initial`"),
        (misspelt, " reads 'sigma', which has not been drawn; check the name"),
        (with_a_param, "'w' is a numpyro.param"),
        (that_raises, "fails: RuntimeError: no such luck"),
    ],
    ids=["missing", "extra", "observes", "shape", "discrete", "first-draw", "misspelt", "param", "raises"],
)
def test_proposal_must_sample_what_its_block_says(proposal: Any, message: str) -> None:
    refused(f"block 'tau': its proposal.*{message}", model, pg.Block("tau", proposal=proposal), MU, C)


def test_proposal_must_treat_a_declared_plate_as_a_batch() -> None:
    def joint(size: int) -> dist.Distribution:
        return dist.Normal(jnp.zeros(size), 1.0).to_event(1)

    refused(
        r"block 'z': its proposal's first draw gives 'z' the batch shape \(\); inside the declared plate 'points'",
        local,
        pg.Block("z", proposal=draws(z=joint)),
    )


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (pg.Block("tau", proposal=draws(tau=NORMAL)), "block 'tau'.*draws values of 'tau' outside the support"),
        (pg.Block("tau", proposal=draws(tau=dist.Uniform(0.0, 0.5))), "block 'tau'.*'tau'.*support is too narrow"),
        (
            pg.Block("c", proposal=draws(c=lambda n: dist.Categorical(logits=jnp.zeros((n, 4))))),
            "block 'c'.*draws values of 'c' outside the support",
        ),
        (
            pg.Block("c", proposal=draws(c=lambda n: dist.Categorical(logits=jnp.zeros((n, 2))))),
            "block 'c'.*'c'.*support is too narrow",
        ),
    ],
    ids=["wide", "narrow", "more-categories", "fewer-categories"],
)
def test_supports_must_agree(block: pg.Block, message: str) -> None:
    others = [other for other in (TAU, MU, C) if other.sites != block.sites]
    refused(message, model, *others, block)


class Pooling(eqx.Module):
    """A proposal that pools with the mask, or without it in one of its two draws."""

    careless: str = eqx.field(static=True)

    def __call__(self, data: Any, latents: Any, model: Any) -> None:
        self._sample(data, "update")

    def initial(self, data: Any, latents: Any, model: Any) -> None:
        self._sample(data, "initial")

    def _sample(self, data: Any, draw: str) -> None:
        real = jnp.ones_like(data["x"]) if draw == self.careless else data.mask["points"]
        numpyro.sample("mu", dist.Normal(jnp.sum(real * data["x"]), 1.0))


def test_proposal_that_pools_with_the_mask_is_accepted() -> None:
    build(single, pg.Block("mu", proposal=Pooling("never")))


@pytest.mark.parametrize("careless", ["update", "initial"])
def test_proposal_that_pools_without_the_mask_is_named(careless: str) -> None:
    refused(
        "block 'mu': its proposal.*changes when an instance is padded", single, pg.Block("mu", proposal=Pooling(careless))
    )


# The split of weights ---------------------------------------------------------------------------------------------------


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
