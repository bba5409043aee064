"""Users' kernels are checked like programs when a sampler is built, and have exact weights like them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import popgibbs as pg
from oracles import assert_mean
from refusals import build, local, refused, refused_padded

pytestmark = pytest.mark.usefixtures("quick_compilation")

X = np.array([0.4, -1.1, 0.8], np.float32)


@dataclass(frozen=True)
class BoundLocal(pg.BoundKernel):
    key: Any
    conditional: Any
    distribution: Any

    def draw(self) -> tuple[dict[str, Any], Any]:
        z = self.distribution.sample(self.key)
        return {"z": z}, self.score({"z": z})

    def score(self, values: dict[str, Any]) -> Any:
        return self.conditional.reduce_proposed({"z": self.distribution.log_prob(values["z"])})


class Local(pg.Kernel):
    """q(z_n | x), with a distribution that `of` makes from all points."""

    of: Callable[[Any], Any] = eqx.field(static=True)

    def bind(self, key: Any, conditional: Any) -> BoundLocal:
        return BoundLocal(key, conditional, self.of(conditional.target.data["x"]))


def near(x: Any) -> Any:
    """Close to the conditional, Normal(x/2, 1/√2)."""
    return dist.Normal(0.4 * x, 0.8)


def block(of: Callable[[Any], Any], **options: Any) -> pg.Block:
    return pg.Block("z", proposal=Local(of), **options)


@pytest.mark.parametrize("move", [pg.Reweight(), pg.Metropolis()], ids=["reweighted", "accepted"])
def test_evidence_is_unbiased_under_a_users_kernel(every_block, move):
    apg = build(local, block(near, move=move))
    assert apg.built.partitions[0].plates == ("points",)
    estimates = every_block(apg, {"x": X}, lambda p: p.total_log_evidence, num_runs=5000, num_sweeps=2, num_particles=3)
    exact = stats.norm(0, np.sqrt(2)).logpdf(X).sum()
    assert_mean(np.exp(np.asarray(estimates, np.float64) - exact).T, 1.0)


def test_a_kernel_is_bound_once_for_a_draw_and_a_score(monkeypatch):
    apg, count = build(local, block(near)), []
    bind = Local.bind
    monkeypatch.setattr(Local, "bind", lambda self, *arguments: count.append(1) or bind(self, *arguments))
    apg.sample(jax.random.key(0), [{"x": X}], num_sweeps=1, num_particles=2)
    assert len(count) == 2  # one trace of the first draw, one of the update


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (lambda x: dist.Normal(x[:, None], 1.0), r"draws 'z' with shape \(5, 1\); the model's has shape \(5,\)"),
        (lambda x: dist.Poisson(jnp.exp(x)), "draws 'z' as discrete; the model's is continuous"),
        (lambda x: dist.Uniform(x - 1, x + 1), "block 'z': its proposal's first draw cannot draw values of 'z'"),
        (lambda x: dist.Normal(x.undefined, 1.0), "block 'z': its proposal's first draw fails: .*undefined"),
    ],
    ids=["shape", "kind", "too narrow", "broken"],
)
def test_a_kernel_that_does_not_fit_the_model_is_refused(of, message):
    refused(message, local, block(of))


def positive(x: Any) -> None:
    import numpyro

    with numpyro.plate("points", x.shape[0]):
        z = numpyro.sample("z", dist.Gamma(2.0, 2.0))
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


def test_a_kernel_that_leaves_the_models_support_is_refused():
    refused("draws values of 'z' outside the support that the model gives it", positive, block(near))


def test_a_kernel_that_pools_padded_points_is_refused_where_instances_are_padded():
    refused_padded(
        "block 'z': its proposal's first draw changes when an instance is padded",
        local,
        block(lambda x: dist.Normal(0.4 * x + 0.1 * jnp.sum(x), 0.8)),
    )


class Together(Local):
    """A kernel whose elements depend on each other's values."""

    def bind(self, key: Any, conditional: Any) -> BoundLocal:
        return BoundTogether(key, conditional, self.of(conditional.target.data["x"]))


class BoundTogether(BoundLocal):
    def score(self, values: dict[str, Any]) -> Any:
        z = values["z"]
        before = jnp.concatenate([jnp.zeros(1), z[:-1]])
        return self.conditional.reduce_proposed({"z": self.distribution.log_prob(z - 0.5 * before)})

    def draw(self) -> tuple[dict[str, Any], Any]:
        def follow(before, noise):
            z = noise + 0.5 * before
            return z, z

        _, z = jax.lax.scan(follow, jnp.zeros(()), self.distribution.sample(self.key))
        return {"z": z}, self.score({"z": z})


def test_a_kernel_whose_elements_depend_on_each_other_is_weighed_as_a_whole():
    apg = build(local, pg.Block("z", proposal=Together(near)))
    assert apg.built.partitions[0].whole
