"""Random rounding errors are as large as those of a computation, and no larger."""

import jax
import jax.numpy as jnp
import numpy as np

from popgibbs.running.rounding import with_rounding_errors

KEYS = jax.random.split(jax.random.key(0), 64)
EPS = np.finfo(np.float32).eps


def spread(function, *inputs):
    """The largest change by random rounding errors."""
    noisy = with_rounding_errors(function, *inputs)
    found = np.stack([np.asarray(noisy(*inputs, key)) for key in KEYS])
    return np.max(np.abs(found - np.asarray(function(*inputs))))


def test_one_operation_is_off_by_one_rounding():
    x = jnp.float32(3.0)
    assert 0 < spread(lambda x: x * 2, x) <= 2 * 6 * EPS  # one error and its own rounding


def test_cancellation_shows():
    x = jnp.float32(1e6)
    assert spread(lambda x: (x + 1.0) - x, x) > 0.05
    assert spread(lambda x: jnp.float32(1.0) + 0 * x, x) < 10 * EPS


def test_functions_inside_are_entered_and_trees_keep_their_structure():
    def log_prob(values):
        return {"out": jax.jit(lambda x: (x + 1.0) - x)(values["x"]), "integer": values["n"] + 1}

    values = {"x": jnp.full(3, 1e6, jnp.float32), "n": jnp.arange(3)}
    noisy = with_rounding_errors(log_prob, values)
    found = [noisy(values, key) for key in KEYS[:8]]
    assert np.ptp([each["out"] for each in found], axis=0).min() > 0.05
    assert all(np.array_equal(each["integer"], [1, 2, 3]) for each in found)
