"""The shipped samplers reproduce pinned results.

A change that is not meant to change numbers must pass with these unchanged. They are pinned to five digits, because
rounding differs between processors.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from popgibbs.paper import runs
from popgibbs.paper.bmnist import BMNIST
from popgibbs.paper.bmnist.data import simulate
from popgibbs.paper.bmnist.experiment import mean_digit
from popgibbs.paper.dmm import DMM
from popgibbs.paper.gmm import GMM
from popgibbs.paper.tables import evaluate

pytestmark = pytest.mark.usefixtures("quick_compilation")


def video(key, digits, frames):
    """A video of two images that are in the package, so that no download is needed."""
    images = np.stack([mean_digit(), mean_digit().T]) * 255
    return simulate(key, jnp.asarray(images.astype(np.uint8)), digits, frames)


@pytest.mark.parametrize(
    ("experiment", "variant", "size", "num_instances", "log_joint", "log_evidence"),
    [
        (GMM, "default", {"points": 30}, 8, [-146.70316, -146.85750, -146.96898, -146.98146], -137.42205),
        (DMM, "default", {"points": 40}, 4, [-15.017067, -15.256453, -14.606855, -14.948410], -160.11218),
        pytest.param(
            *(replace(BMNIST, simulate_held_out=video), "default", {"digits": 2, "frames": 4}, 2),
            *([-1896.0305, -1793.2546, -1792.6503, -1791.2227], -2019.8929),
        ),
    ],
    ids=["mixture", "deep mixture", "bouncing digits"],
)
def test_evaluation_of_a_shipped_sampler_gives_the_same_digits(
    experiment, variant, size, num_instances, log_joint, log_evidence
):
    experiment = replace(experiment, measures={})  # which would only be compiled
    sampler, _ = runs.load(experiment, experiment.shipped / variant, **size)
    budget = {"num_sweeps": 3, "num_particles": 4, "num_populations": 2}
    result, _ = evaluate(experiment, sampler, num_instances=num_instances, size=size, seed=7, **budget)
    np.testing.assert_allclose(result["log_joint"]["by_sweep"], log_joint, rtol=1e-5)
    np.testing.assert_allclose(result["log_evidence"]["mean"], log_evidence, rtol=1e-5)
