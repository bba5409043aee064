"""Errors about blocks and proposals when a sampler is built, which name the site, the block and the way out."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpyro
import numpyro.distributions as dist
import pytest

import popgibbs as pg
from refusals import MU, NORMAL, TAU, C, build, draws, local, model, refused, refused_padded, single

pytestmark = pytest.mark.usefixtures("quick_compilation")


# The blocks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pg.Block(), "a Block needs the name of at least one site"),
        (lambda: pg.Block("mu", "mu"), r"the sites \['mu'\] are named twice"),
        (lambda: pg.Block("mu", pg.Prior()), "the sites of a Block are names"),
        (lambda: pg.Block("mu", move="metropolis"), "move='metropolis' is not a move"),
        (lambda: pg.Block("mu", proposal=pg.Prior), "proposal=Prior is a class"),
        (lambda: pg.Block("mu", proposal=3), "proposal=3 is neither a NumPyro program nor a Kernel"),
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
        ([TAU, MU, pg.Block("c", move=pg.HMC(step_size=0.1))], "block 'c': HMC has no continuous site to move"),
        (
            [TAU, pg.Block("mu", move=pg.HMC(step_size=0.1)), C],
            r"block 'mu' moves \['mu'\] by HMC, but nothing draws them first",
        ),
        ([pg.Block("tau", proposal=pg.Enumerated()), MU, C], r"block 'tau': Enumerated needs finite.*\['tau'\] are not"),
    ],
    ids=["none", "uncovered", "unknown", "observed", "hmc-discrete", "hmc-start", "enumerated"],
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


def test_enumeration_in_a_declared_plate_is_accepted() -> None:
    built = build(model, TAU, MU, pg.Block("c", proposal=pg.Enumerated())).built
    assert built.partitions[2].plates == ("points",)


class Shared(eqx.Module):
    """A proposal for one site that holds an array."""

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
def test_proposal_must_sample_the_sites_of_its_block(proposal: Any, message: str) -> None:
    refused(f"block 'tau': its proposal.*{message}", model, pg.Block("tau", proposal=proposal), MU, C)


def test_proposal_must_treat_a_declared_plate_as_a_batch() -> None:
    def joint(size: int) -> dist.Distribution:
        return dist.Normal(jnp.zeros(size), 1.0).to_event(1)

    refused(
        r"block 'z': its proposal's first draw gives 'z' batch shape \(\); inside the declared plate 'points'",
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
    """A proposal that pools with the mask, or without it in its first draw or its updates."""

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
    refused_padded(
        "block 'mu': its proposal.*changes when an instance is padded", single, pg.Block("mu", proposal=Pooling(careless))
    )
