"""What is compiled: once per shape, whatever the number of sweeps, and nothing the second time."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from scipy import stats

import popgibbs as pg
from models import located_sampler

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
INSTANCES = {"x": np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)}
BUDGET = {"num_particles": 4, "num_populations": 2}
COUNTED = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/backend_compile_duration")


@contextmanager
def counting() -> Iterator[list[str]]:
    """Records traces and compilations, which also show programs that a cache on disk would have provided."""
    events: list[str] = []

    def heard(event: str, *_: object, **__: object) -> None:
        if event in COUNTED:
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)


@pytest.fixture(scope="module")
def sampler() -> pg.APG:
    return located_sampler(example={"x": INSTANCES["x"][0]})


@pytest.fixture(scope="module")
def posterior(sampler: pg.APG) -> pg.Posterior:
    return sampler.sample(KEY, INSTANCES, num_sweeps=40, **BUDGET)


@pytest.mark.parametrize("num_sweeps", [1, 3, 32, 33, 70])
def test_another_number_of_sweeps_compiles_nothing(sampler: pg.APG, posterior: pg.Posterior, num_sweeps: int) -> None:
    with counting() as events:
        found = sampler.sample(KEY, INSTANCES, num_sweeps=num_sweeps, **BUDGET)
    assert events == []
    assert found.num_sweeps == num_sweeps


def test_extending_compiles_nothing_and_equals_one_long_run(sampler: pg.APG, posterior: pg.Posterior) -> None:
    with counting() as events:
        begun = sampler.sample(KEY, INSTANCES, num_sweeps=7, **BUDGET)
        extended = begun.extend(KEY, 2).extend(KEY, 31)
    assert events == []
    np.testing.assert_allclose(extended.log_evidence_by_sweep, posterior.log_evidence_by_sweep, rtol=1e-6)
    np.testing.assert_allclose(extended[1]["mu"], posterior[1]["mu"], rtol=1e-6)


def test_a_number_of_instances_shares_its_program_with_others_of_the_same_size(sampler: pg.APG) -> None:
    def of(count: int) -> dict[str, np.ndarray]:
        return {"x": np.resize(INSTANCES["x"], (count, 5))}

    sampler.sample(KEY, of(10), num_sweeps=1, **BUDGET)
    with counting() as events:
        sampler.sample(KEY, of(9), num_sweeps=1, **BUDGET)
    assert events == []


def test_a_second_fit_compiles_nothing(sampler: pg.APG) -> None:
    """Even if optimiser and sampler are new: they are equal in all but the sampler's numbers."""

    def fit(sampler: pg.APG, rate: float = 1e-2) -> pg.Fit:
        optimiser = optax.adam(rate)
        return sampler.fit(
            KEY, INSTANCES, num_steps=2, num_sweeps=1, num_particles=4, batch_size=3, optimiser=optimiser, progress=False
        )

    first = fit(sampler)
    with counting() as events:
        again = fit(sampler)
        further = fit(first.sampler)
    assert [event for event in events if event.endswith("backend_compile_duration")] == []
    np.testing.assert_array_equal(again.history["log_joint"], first.history["log_joint"])
    assert np.all(further.history["log_joint"] != first.history["log_joint"])
    other = fit(sampler, rate=0.5)
    assert float(other.sampler.blocks[0].proposal.a) != float(first.sampler.blocks[0].proposal.a)


def test_a_trained_sampler_shares_the_programs_of_the_untrained_one(sampler: pg.APG, posterior: pg.Posterior) -> None:
    trained = sampler.fit(
        KEY, INSTANCES, num_steps=1, num_sweeps=1, num_particles=4, batch_size=3, progress=False
    ).sampler
    with counting() as events:
        found = trained.sample(KEY, INSTANCES, num_sweeps=3, **BUDGET)
    assert events == []
    assert np.any(found[0]["mu"] != posterior[0]["mu"])


def test_a_second_build_compiles_nothing(sampler: pg.APG) -> None:
    with counting() as events:
        located_sampler(example={"x": INSTANCES["x"][0]})
    assert [event for event in events if event.endswith("backend_compile_duration")] == []


def test_a_ragged_input_compiles_two_shapes_and_other_ragged_inputs_none() -> None:
    def ragged(*sizes: int) -> list[dict[str, np.ndarray]]:
        return [{"x": np.random.default_rng(size).normal(size=size).astype(np.float32)} for size in sizes]

    apg = located_sampler(example=ragged(5)[0])
    with counting() as events:
        apg.sample(KEY, ragged(5, 9, 14, 30, 17, 22, 12), num_sweeps=1, **BUDGET)
    assert 1 <= sum(event.endswith("backend_compile_duration") for event in events) <= 2 * 2  # first draw, sweeps
    with counting() as events:
        posterior = apg.sample(KEY, ragged(8, 25, 11, 29, 15, 16, 20), num_sweeps=3, **BUDGET)
    assert events == []
    assert posterior.padding > 0


def test_given_sizes_share_programs_between_calls_with_one_instance() -> None:
    apg = located_sampler(example={"x": INSTANCES["x"][0]}, sizes={"points": [8, 16]})
    apg.sample(KEY, [np.zeros(5, np.float32)], num_sweeps=1, **BUDGET)
    with counting() as events:
        apg.sample(KEY, [np.zeros(7, np.float32)], num_sweeps=1, **BUDGET)
    assert events == []


SPREAD = 1.0


def spread_out(x: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, SPREAD))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)


def simulated(key: jax.Array) -> dict[str, jax.Array]:
    return {"x": SPREAD * jax.random.normal(key, (4,))}


def test_a_global_constant_that_changes_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the model, which is then compiled again, nor in a simulator."""
    apg = pg.APG(spread_out, data={"x": "points"}, blocks=[pg.Block("mu", proposal=pg.Prior(), move=pg.Metropolis())])

    def results() -> tuple[float, float]:
        x = np.full(5, 3.0, np.float32)
        evidence = apg.sample(KEY, [x], num_sweeps=0, num_particles=10_000).log_evidence[0]
        fit = apg.fit(KEY, simulated, num_steps=1, num_sweeps=0, num_particles=2, batch_size=4, progress=False)
        exact = stats.multivariate_normal(cov=np.eye(5) + SPREAD**2).logpdf(x)
        assert evidence == pytest.approx(exact, abs=0.5)  # the relative error is below 0.1
        return evidence, fit.history["log_joint"][-1]

    before = results()
    monkeypatch.setattr(f"{__name__}.SPREAD", 3.0)
    after = results()
    assert after[0] > before[0] + 1
    assert after[1] != before[1]
