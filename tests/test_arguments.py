"""Arguments: typed and legacy random keys give the same results, and wrong arguments are reported in one sentence."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest

import popgibbs as pg
from models import located_sampler
from popgibbs._arguments import as_key, whole_number

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY, LEGACY = jax.random.key(3), jax.random.PRNGKey(3)
INSTANCES = {"x": np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)}


@pytest.fixture(scope="module")
def located() -> pg.APG:
    return located_sampler(example={"x": INSTANCES["x"][0]})


@pytest.fixture(scope="module")
def posterior(located: pg.APG) -> pg.Posterior:
    return located.sample(KEY, INSTANCES, num_sweeps=1, num_particles=3)


# Random keys ------------------------------------------------------------------------------------------------------------


def fitted(key: Any, located: pg.APG, posterior: pg.Posterior) -> Any:
    fit = located.fit(key, INSTANCES, num_steps=1, num_sweeps=0, num_particles=2, batch_size=2, progress=False)
    return fit.history["loss"]


def sampled(key: Any, located: pg.APG, posterior: pg.Posterior) -> Any:
    return located.sample(key, INSTANCES, num_sweeps=1, num_particles=3).log_joint


def extended(key: Any, located: pg.APG, posterior: pg.Posterior) -> Any:
    return posterior.extend(key, 1).log_joint


def resampled(key: Any, located: pg.APG, posterior: pg.Posterior) -> Any:
    return posterior.resampled(key).log_joint


def in_arviz(key: Any, located: pg.APG, posterior: pg.Posterior) -> Any:
    return posterior.to_arviz(key).posterior["mu"].values


def compared(key: Any, located: pg.APG, posterior: pg.Posterior) -> Any:
    budget: Any = {"num_sweeps": 1, "num_particles": 2, "leapfrog": (), "progress": False}
    return pg.compare(key, located, INSTANCES, **budget).log_joint["APG"]


def tuned(key: Any, located: pg.APG, posterior: pg.Posterior) -> Any:
    moved = pg.hmc_rws(located, step_size=1.0, num_steps=1)
    move: Any = pg.tune_step_size(moved, key, INSTANCES, num_sweeps=1, num_particles=2).built.blocks[0].move
    return np.asarray(move.step_size)


@pytest.mark.parametrize("result", [fitted, sampled, extended, resampled, in_arviz, compared, tuned])
def test_a_legacy_key_gives_the_same_result_as_the_typed_key(
    located: pg.APG, posterior: pg.Posterior, result: Callable[..., Any]
) -> None:
    np.testing.assert_array_equal(result(LEGACY, located, posterior), result(KEY, located, posterior))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (0, r"must be a random key such as jax.random.key\(0\), not 0"),
        (None, "not None"),
        ("seed", "not 'seed'"),
        ([0, 1], "not a list"),
        (np.zeros(2), r"not numbers of dtype float64 and shape \(2,\)"),
        (np.zeros(3, np.uint32), r"not numbers of dtype uint32 and shape \(3,\)"),
        (jax.random.split(KEY), r"must be a single random key, but it has shape \(2,\)"),
        (jax.random.split(LEGACY), r"must be a single random key, but it has shape \(2,\)"),
    ],
)
def test_a_key_of_another_kind_is_refused(located: pg.APG, key: Any, message: str) -> None:
    for call in (as_key, lambda key: sampled(key, located, None), lambda key: fitted(key, located, None)):
        with pytest.raises(ValueError, match=message):
            call(key)


# Numbers ----------------------------------------------------------------------------------------------------------------

WRONG = [("4", "'4' must be a whole number"), (2.5, "2.5 must be a whole"), (True, "True must be a whole")]


@pytest.mark.parametrize(("value", "message"), [*WRONG, (None, "None must be a whole"), (-1, "-1 must be at least")])
@pytest.mark.parametrize(
    "name", ["num_steps", "num_sweeps", "num_particles", "batch_size", "checkpoint_every", "report_every"]
)
def test_numbers_of_training_are_checked(located: pg.APG, name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"{name}={message}"):
        located.fit(KEY, INSTANCES, **{"num_steps": 1, name: value})


@pytest.mark.parametrize(("value", "message"), [*WRONG, (None, "None must be a whole"), (-1, "-1 must be at least")])
@pytest.mark.parametrize("name", ["num_sweeps", "num_particles", "num_populations", "batch_size"])
def test_numbers_of_sampling_are_checked(located: pg.APG, name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"{name}={message}"):
        located.sample(KEY, INSTANCES, **{name: value})


@pytest.mark.parametrize("name", ["checkpoint_every", "report_every", "microbatch_size"])
def test_zero_is_refused_where_one_is_the_minimum(located: pg.APG, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
        located.fit(KEY, INSTANCES, **{"num_steps": 1, name: 0})


def test_numpy_integers_become_python_integers(located: pg.APG) -> None:
    assert type(whole_number("n", np.int64(3), 1)) is int
    found = located.sample(KEY, INSTANCES, num_sweeps=np.int64(1), num_particles=np.uint8(3), num_populations=np.int32(1))
    np.testing.assert_array_equal(found.log_joint, sampled(KEY, located, None))


# Instances and optimisers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instances", [None, 3, lambda key: None])
def test_instances_of_an_unknown_form_are_refused(located: pg.APG, instances: Any) -> None:
    message = "simulator must return a dict" if callable(instances) else "instances must be a list of dicts"
    if instances is not None:  # `fit` without instances lets the model draw them
        with pytest.raises(ValueError, match=message):
            located.fit(KEY, instances, num_steps=1)
    with pytest.raises(ValueError, match="instances must be a list of dicts"):
        located.sample(KEY, instances)


@pytest.mark.parametrize("optimiser", ["adam", optax.adam])
def test_an_optimiser_that_is_not_from_optax_is_refused(located: pg.APG, optimiser: Any) -> None:
    with pytest.raises(ValueError, match=r"optimiser must be an Optax one such as optax.adam\(1e-3\), not"):
        located.fit(KEY, INSTANCES, num_steps=1, optimiser=optimiser)
