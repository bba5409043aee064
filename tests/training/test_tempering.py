"""Tempering: β is a power of the likelihood, rises only as fast as the sampler follows, and is resumed."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import popgibbs as pg
from models import located_sampler
from popgibbs.data import complete
from popgibbs.smc import run
from popgibbs.training import Temper, Tempering

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(3)
X = np.array([0.3, -0.8, 1.1], np.float32)
BETA = 0.04


def with_noise(scale: float):
    def model(x: jax.Array) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("points", x.shape[0]):
            numpyro.sample("x", dist.Normal(mu, scale), obs=x)

    return model


def test_a_tempered_gaussian_is_one_with_wider_noise() -> None:
    """p(x | z)^β is Normal noise of scale σ/√β up to a constant, with the same particles, weights and ancestors."""

    def sampled(scale: float, beta: float | None):
        apg = pg.APG(with_noise(scale), data={"x": "points"}, blocks=[pg.Block("mu", proposal=pg.Prior())])
        sampler = apg.check({"x": X})
        batch = jax.tree.map(lambda leaf: leaf[None], complete({"x": X}, apg.axes))
        sampler = replace(sampler, beta=beta)
        return run(sampler, KEY[None], batch, num_sweeps=3, num_particles=6)[0]

    tempered, wide = sampled(0.2, BETA), sampled(0.2 / BETA**0.5, None)
    np.testing.assert_array_equal(tempered.ancestors, wide.ancestors)
    np.testing.assert_allclose(tempered.particles.latents["mu"], wide.particles.latents["mu"], rtol=1e-6)
    weights = [jax.nn.softmax(population.log_weights) for population in (tempered, wide)]
    np.testing.assert_allclose(*weights, rtol=1e-4)
    assert np.ptp(weights[0]) > 0.01


@pytest.mark.parametrize(("share", "direction"), [(0.9, 1), (0.1, -1)])
def test_beta_follows_the_worst_block(share: float, direction: int) -> None:
    tempering = Tempering(start=0.01, min_ess_fraction=0.3, rate=0.01)
    temper = Temper(jnp.log(0.1), jnp.array([0.95, share]))
    advanced = tempering.advance(temper, temper.ess_fractions)
    assert np.sign(advanced.log_beta - temper.log_beta) == direction
    assert abs(advanced.log_beta - temper.log_beta) <= tempering.rate * 1.001


def test_beta_stays_between_its_start_and_one() -> None:
    tempering = Tempering(start=0.5, rate=0.4)
    temper = Temper.begin(tempering, 1)
    for share, expected in [(1.0, 0.0), (0.0, np.log(0.5))]:
        for _ in range(400):
            temper = tempering.advance(temper, jnp.array([share]))
        np.testing.assert_allclose(temper.log_beta, expected, atol=1e-6)


def test_a_tempered_run_reaches_the_model_itself_and_resumes_bit_for_bit(tmp_path) -> None:
    apg = located_sampler(example={"x": np.zeros(3, np.float32)})
    instances = {"x": np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)}

    def fit(num_steps: int, **options) -> pg.Fit:
        return apg.fit(
            KEY,
            instances,
            num_steps=num_steps,
            num_sweeps=1,
            num_particles=4,
            batch_size=2,
            optimiser=optax.adam(1e-2),
            tempering=Tempering(start=0.5, rate=0.02),
            report_every=10,
            progress=False,
            **options,
        )

    whole = fit(100)
    beta = whole.history["beta"]
    assert beta[0] < 0.7
    assert beta[-1] == 1.0
    fit(30, checkpoints=tmp_path / "run")
    resumed = fit(100, checkpoints=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(resumed.history["loss"][-1], whole.history["loss"][-1])
    np.testing.assert_array_equal(resumed.history["beta"], beta[3:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 0.0}, r"start=0.0\) must be in \(0, 1\]"),
        ({"start": 0.5, "min_ess_fraction": 1.0}, "must be between 0 and 1"),
        ({"start": 0.5, "rate": 0.0}, "must be positive"),
    ],
)
def test_settings_are_checked(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tempering(**options)
