"""Diagnostics against exact posterior draws."""

import numpy as np
import pytest
from scipy import stats

from oracles import GATE, STEP, SWITCH, normalised
from popgibbs.diagnostics import truth_rank_p_value

NUM_INSTANCES, NUM_DRAWS = 3000, 4


@pytest.fixture(scope="module")
def log_joints() -> tuple[np.ndarray, np.ndarray]:
    """Log joints of exact posterior draws and of the truth of a discrete model, which coincide in most instances."""
    generator = np.random.default_rng(0)
    s, g, h = (axis.ravel() for axis in np.meshgrid(range(3), range(2), range(3), indexing="ij"))
    prior = SWITCH[s] * np.where(g, GATE[s], 1 - GATE[s]) * STEP[g, h]
    truth = generator.choice(len(prior), size=NUM_INSTANCES, p=prior)
    x = generator.normal((s + 2 * g - h)[truth], 1.0)
    of_state = np.log(prior) + stats.norm.logpdf(x[:, None], s + 2 * g - h, 1.0)
    draws = [row[generator.choice(len(prior), size=NUM_DRAWS, p=normalised(row))] for row in of_state]
    truths = of_state[np.arange(NUM_INSTANCES), truth]
    return np.array(draws, np.float32), np.array(truths, np.float32)


@pytest.mark.parametrize("ulps", [-2, 0, 2])  # the truth is scored by another program, which rounds differently
def test_the_rank_of_discrete_latents_among_exact_draws_is_uniform(log_joints, ulps):
    draws, truths = log_joints
    assert np.mean(np.any(draws == truths[:, None], axis=1)) > 0.5
    assert truth_rank_p_value(draws, truths + ulps * np.spacing(truths), np.random.default_rng(1)) > 1e-3


def test_the_rank_among_draws_that_are_too_good_is_not_uniform(log_joints):
    draws, truths = log_joints
    assert truth_rank_p_value(draws + 0.3, truths, np.random.default_rng(1)) < 1e-6
