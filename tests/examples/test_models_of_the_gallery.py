"""Every example builds its own sampler, simulates from its model and samples without training."""

from importlib import import_module

import jax
import numpy as np
import pytest

import popgibbs as pg

NAMES = (
    "eight_schools",
    "gamma_poisson",
    "logistic",
    "gaussian_mixture",
    "poisson_mixture",
    "lda",
    "ppca",
    "item_response",
)
pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("name", NAMES)
def test_the_example_simulates_and_samples_without_training(name):
    example = import_module(f"examples.{name}")
    bridge = pg.Bridge(
        3
    )  # the loop over its temperatures holds every block's sweep, so that no further sweeps are needed
    sampler = pg.APG(example.model, data=example.AXES, example=example.example, initial=bridge)
    (instance,), (truth,) = sampler.simulate(jax.random.key(0), 1)
    posterior = sampler.sample(jax.random.key(1), [instance], num_sweeps=0, num_particles=3)
    assert not posterior.degenerate[0]
    assert np.isfinite(posterior.log_evidence[0])
    assert {site: values.shape[2:] for site, values in posterior[0].items()} == {
        site: np.shape(value) for site, value in truth.items()
    }
