"""Random keys that compile fast have exactly the bits of JAX's default generator."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import logsumexp

import popgibbs as pg
from popgibbs._random import key_for_checks, unrolled

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(7)
DRAWS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "uniform": jax.random.uniform,
    "normal": lambda key: jax.random.normal(key, (5, 3)),
    "many": lambda key: jax.random.bits(key, (3, 1001)),
    "gamma": lambda key: jax.random.gamma(key, 2.5, (4,)),
    "categorical": lambda key: jax.random.categorical(key, jnp.zeros((4, 3))),
    "permutation": lambda key: jax.random.permutation(key, 10),
    "integers": lambda key: jax.random.randint(key, (6,), 0, 10),
    "bytes": lambda key: jax.random.bits(key, (5,), jnp.uint8),
    "short words": lambda key: jax.random.bits(key, (5,), jnp.uint16),
    "split": lambda key: jax.random.key_data(jax.random.split(key, (3, 2))),
    "folds": lambda key: jnp.stack([jax.random.key_data(jax.random.fold_in(key, n)) for n in (0, 1, 2**31 - 1)]),
    "many keys": lambda key: jax.vmap(lambda key: jax.random.normal(key, (3,)))(jax.random.split(key, 4)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_the_default_generator(name: str) -> None:
    assert jax.random.key_impl(unrolled(KEY)) != jax.random.key_impl(KEY)
    np.testing.assert_array_equal(DRAWS[name](unrolled(KEY)), DRAWS[name](KEY))


def test_draws_in_double_precision_are_too() -> None:
    with jax.enable_x64(True):
        wanted, found = (jax.random.normal(key, (3,), jnp.float64) for key in (KEY, unrolled(KEY)))
    np.testing.assert_array_equal(found, wanted)


def test_other_generators_are_left_alone() -> None:
    key = jax.random.key(0, impl="rbg")
    assert unrolled(key) is key
    assert jax.random.key_impl(unrolled(unrolled(KEY))) == jax.random.key_impl(unrolled(KEY))


# Users' functions -------------------------------------------------------------------------------------------------------


def counts(x: jax.Array) -> None:
    """A latent count n ~ Poisson(3), and x_i ~ Normal(n, 1)."""
    n = numpyro.sample("n", dist.Poisson(3.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(n, 1.0), obs=x)


class BoundPoisson(pg.BoundKernel):
    """Poisson(3) by `jax.random.poisson`, which takes only keys of JAX's own kind."""

    def __init__(self, key: jax.Array):
        self.key = key

    def draw(self) -> tuple[dict[str, jax.Array], jax.Array]:
        values = {"n": jax.random.poisson(self.key, 3.0)}
        return values, self.score(values)

    def score(self, values: dict[str, jax.Array]) -> jax.Array:
        return jnp.asarray(dist.Poisson(3.0).log_prob(values["n"]))[None]


class PoissonKernel(pg.Kernel):
    def bind(self, key: jax.Array, conditional: Any) -> BoundPoisson:
        return BoundPoisson(key)


def resample_by_poisson(key: jax.Array, log_weights: jax.Array) -> jax.Array:
    """A user's resampler; the shift by a Poisson count makes no difference to its distribution."""
    return (pg.multinomial(key, log_weights) + 0 * jax.random.poisson(key, 1.0)).astype(int)


@pytest.mark.parametrize("proposal", [pg.Prior(), PoissonKernel()], ids=["prior", "kernel"])
def test_programs_kernels_resamplers_and_simulators_may_draw_poisson_counts(proposal: pg.Kernel) -> None:
    x = np.array([2.5, 3.5, 3.0], np.float32)
    block = pg.Block("n", proposal=proposal, move=pg.Metropolis())
    apg = pg.APG(counts, data={"x": "points"}, blocks=[block], resample=resample_by_poisson)
    posterior = apg.sample(KEY, [x], num_sweeps=4, num_particles=500, num_populations=4)
    n = np.arange(40)
    log_joint = stats.poisson(3).logpmf(n) + stats.norm(n[:, None], 1).logpdf(x).sum(axis=1)
    # The mean weight under the prior, whose relative error is 0.02 with 2,000 particles.
    assert posterior.log_evidence[0] == pytest.approx(logsumexp(log_joint), abs=0.1)

    def simulator(key: jax.Array) -> dict[str, jax.Array]:
        return {"x": jax.random.poisson(key, 3.0, (3,)).astype(jnp.float32)}

    apg.fit(KEY, simulator, num_steps=1, num_sweeps=1, num_particles=2, batch_size=2, progress=False)


def test_keys_for_checks_draw_like_uniform_numbers() -> None:
    """Few rounds suffice: over many counters and keys, words are uniform and neighbours uncorrelated."""
    keys = jax.random.split(key_for_checks(3), 100)
    draws = np.asarray(jax.vmap(lambda key: jax.random.uniform(key, (100,)))(keys))
    assert stats.kstest(draws.ravel(), "uniform").pvalue > 0.01
    for axis in (0, 1):
        lagged = np.corrcoef(draws.ravel(), np.roll(draws, 1, axis).ravel())[0, 1]
        assert abs(lagged) < 4 / np.sqrt(draws.size)
