"""Training learns exact conditionals, is reproducible bit for bit, and survives stops and failing steps."""

import os
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from rich.console import Console

import popgibbs as pg
from models import centred_sampler, located_sampler
from popgibbs.data import complete, parse_axes
from popgibbs.training import Budget, Metrics, TrainingStep, checkpoint, read_about, start, training_progress
from popgibbs.training import loop as training

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(7)
INSTANCES = {"x": np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)}


@pytest.fixture(scope="module")
def located() -> pg.APG:
    return located_sampler(example={"x": INSTANCES["x"][0]})


def fit(apg: pg.APG, num_steps: int = 10, **options: Any) -> pg.Fit:
    options = {"instances": INSTANCES, "optimiser": optax.adam(1e-2), "batch_size": 2, "progress": False} | options
    return apg.fit(KEY, num_steps=num_steps, num_sweeps=1, num_particles=4, **options)


def arrays(apg: pg.APG) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(apg.built, eqx.is_inexact_array))]


@pytest.fixture(scope="module")
def uninterrupted(located: pg.APG) -> pg.Fit:
    return fit(located, report_every=4)


class Tracked(NamedTuple):
    """A run and everything observed during it."""

    fit: pg.Fit
    received: list[Any]  # by its trackers
    screen: str  # its progress bar
    step: Any  # its compiled step


@pytest.fixture(scope="module")
def tracked(located: pg.APG) -> Tracked:
    """The same run again, with trackers and a progress bar."""
    received: list[Any] = []
    steps: list[Any] = []
    screen = StringIO()

    def compiled(*arguments: Any) -> Any:
        steps.append(TrainingStep(*arguments))
        return steps[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "TrainingStep", compiled)
        with training_progress(10, ["mu"], 4, console=Console(file=screen, width=200)) as bar:
            fitted = fit(located, report_every=3, trackers=[lambda *numbers: received.append(numbers), bar])
    (step,) = steps
    return Tracked(fitted, received, screen.getvalue(), step)


def test_the_speed_of_slow_steps_is_shown() -> None:
    screen, clock = StringIO(), [0.0]
    numbers = {"ess": [1.0], "loss": np.zeros(1), "log_joint": 0.0, "beta": 1.0, "skipped": 0}
    console = Console(file=screen, width=200, get_time=lambda: clock[0])
    with training_progress(200, ["mu"], 4, console=console) as bar:
        for step in (50, 100, 150):
            clock[0] += 100.0
            bar(step, numbers)
    assert "0.5/s" in screen.getvalue()


# Learning ---------------------------------------------------------------------------------------------------------------


def test_training_finds_the_exact_conditionals() -> None:
    """The loss falls to the entropy of the exact conditionals, where weights are equal."""

    def simulate(key: jax.Array) -> dict[str, jax.Array]:
        key_mu, key_x = jax.random.split(key)
        return {"x": jax.random.normal(key_mu, (2,)) + 2**0.5 * jax.random.normal(key_x, (3, 2))}

    apg = centred_sampler()
    fitted = apg.fit(
        KEY,
        simulate,
        num_steps=300,
        num_sweeps=2,
        num_particles=20,
        batch_size=10,
        optimiser=optax.adam(optax.cosine_decay_schedule(3e-2, 300)),
        report_every=1,
        progress=False,
    )
    centre, points = (block.proposal for block in fitted.sampler.built.blocks)
    np.testing.assert_allclose([centre.a, centre.s], [1.0, 0.0], atol=0.03)
    np.testing.assert_allclose([points.a, points.b, points.s], [0.5, 0.5, -0.5 * np.log(2)], atol=0.03)
    loss = fitted.history["loss"][:, 1]
    error = loss[-50:].std() / np.sqrt(50)
    # The entropy of q(z | x, μ) for three points in the plane and two sweeps.
    assert abs(loss[-50:].mean() - 2 * 3 * 2 * 0.5 * np.log(2 * np.pi * np.e / 2)) < 4 * error
    assert loss[:3].mean() > loss[-50:].mean() + 1.0
    assert np.all(fitted.history["ess"][-1] > 0.95 * 20)
    assert arrays(apg)[0] == np.float32(0.8)


def test_the_same_key_gives_the_same_bits(uninterrupted: pg.Fit, tracked: Tracked) -> None:
    assert [a.tobytes() for a in arrays(tracked.fit.sampler)] == [a.tobytes() for a in arrays(uninterrupted.sampler)]
    assert np.array_equal(tracked.fit.history["loss"][-1], uninterrupted.history["loss"][-1])


def test_training_step_is_compiled_once(tracked: Tracked) -> None:
    assert tracked.step.sum.compiled._cache_size() == tracked.step.apply._cache_size() == 1


def test_trackers_receive_the_numbers_of_reported_steps(tracked: Tracked) -> None:
    received = tracked.received
    assert tracked.fit.history.steps == [step for step, _ in received] == [3, 6, 9, 10]
    assert set(received[0][1]) == {*Metrics._fields, "skipped"}
    assert "10/10" in tracked.screen
    assert f"loss {received[-1][1]['loss'].sum():.1f}" in tracked.screen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": 0}, "num_steps=0 must be at least 1"),
        ({"num_steps": 1, "num_sweeps": -1}, "num_sweeps=-1 must be at least 0"),
        ({"num_steps": 1, "num_particles": 0}, "num_particles=0 must be at least 1"),
        ({"num_steps": 1, "batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"num_steps": 1, "checkpoint_every": 0}, "checkpoint_every=0 must be at least 1"),
        ({"num_steps": 1, "report_every": 0}, "report_every=0 must be at least 1"),
        ({"num_steps": 1, "resume": True}, "resume needs a directory for checkpoints"),
        ({"num_steps": 1, "step": 3}, "step=3 applies only to a resumed run; add resume=True"),
    ],
)
def test_budget_is_checked(located: pg.APG, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        located.fit(KEY, INSTANCES, **options)


# Stopping and resuming --------------------------------------------------------------------------------------------------


def interrupt(step: int, metrics: Any) -> None:
    if step == 4:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("stop", ["fewer-steps", "sigterm"])
def test_resumed_run_equals_the_uninterrupted_one_bit_for_bit(
    located: pg.APG, uninterrupted: pg.Fit, tmp_path: Path, stop: str
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    if stop == "sigterm":
        with pytest.raises(pg.Interrupted, match="stopped after step 4"):
            fit(located, checkpoints=tmp_path, report_every=1, trackers=[interrupt])
    else:
        fit(located, num_steps=4, checkpoints=tmp_path)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert read_about(tmp_path)["step"] == 4
    resumed = fit(located, checkpoints=tmp_path, resume=True, report_every=1)
    assert resumed.history.steps == list(range(5, 11))
    assert [a.tobytes() for a in arrays(resumed.sampler)] == [a.tobytes() for a in arrays(uninterrupted.sampler)]
    with pytest.raises(ValueError, match="already holds a run; resume it or choose another directory"):
        fit(located, checkpoints=tmp_path)


def test_the_second_signal_ends_a_run_at_once(located: pg.APG, tmp_path: Path) -> None:
    def insist(step: int, metrics: Any) -> None:
        interrupt(step, metrics)
        interrupt(step, metrics)

    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(pg.Interrupted, match="stopped at once, without saving") as stopped:
        fit(located, checkpoints=tmp_path, report_every=1, trackers=[insist])
    assert stopped.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is handler
    with pytest.raises(pg.CheckpointError, match="no checkpoint"):
        read_about(tmp_path)


@pytest.mark.parametrize(("saves", "held"), [(False, [False] * 3), (True, [False, True, True])])
def test_signals_are_delayed_only_when_there_is_something_to_save(
    located: pg.APG, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: bool, held: list[bool]
) -> None:
    """During the first step, which compiles, and without checkpoints, a signal ends the process as usual."""
    handler, found = signal.getsignal(signal.SIGTERM), []

    class Watched(TrainingStep):
        def __call__(self, *arguments: Any) -> Any:
            found.append(signal.getsignal(signal.SIGTERM) is not handler)
            return super().__call__(*arguments)

    monkeypatch.setattr(training, "TrainingStep", Watched)
    fit(located, num_steps=3, checkpoints=tmp_path if saves else None)
    assert found == held


@pytest.mark.parametrize("choice", ["damaged", "chosen"])
def test_a_run_continues_from_an_earlier_checkpoint_bit_for_bit(
    located: pg.APG, uninterrupted: pg.Fit, tmp_path: Path, choice: str
) -> None:
    """Later checkpoints are replaced."""
    fit(located, num_steps=4, checkpoints=tmp_path, checkpoint_every=2)
    if choice == "damaged":
        (tmp_path / "4" / "about" / "metadata").unlink()
        with pytest.warns(UserWarning, match=r"/4 is damaged: .*; .*/2 is used instead"):
            resumed = fit(located, checkpoints=tmp_path, checkpoint_every=3, resume=True, report_every=1)
    else:
        resumed = fit(located, checkpoints=tmp_path, checkpoint_every=3, resume=True, report_every=1, step=2)
    assert resumed.history.steps == list(range(3, 11))
    assert [a.tobytes() for a in arrays(resumed.sampler)] == [a.tobytes() for a in arrays(uninterrupted.sampler)]
    assert sorted(int(child.name) for child in tmp_path.iterdir()) == [9, 10]


@pytest.fixture(scope="module")
def begun(located: pg.APG, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps."""
    directory = tmp_path_factory.mktemp("begun")
    fit(located, num_steps=2, checkpoints=directory)
    return directory


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": jax.random.key(8)}, r"key=\[0, 7\], not \[0, 8\]"),
        ({"instances": {"x": INSTANCES["x"] + 1}}, "instances=6 with SHA-256 .*, not 6 with SHA-256 .*"),
        ({"instances": lambda key: {"x": jax.random.normal(key, (3,))}}, "instances=6 .*, not a simulator"),
        ({"batch_size": 3}, "batch_size=2, not 3"),
        ({"num_particles": 5}, "num_particles=4, not 5"),
        ({"num_sweeps": 2}, "num_sweeps=1, not 2"),
        ({"update_model": "every_sweep"}, "update_model=every_block, not every_sweep"),
        ({"optimiser": optax.adam(2e-2)}, "optimiser 'scale.step_size=-0.01', not 'scale.step_size=-0.02'"),
        ({"optimiser": optax.sgd(1e-2)}, "optimiser 'scale_by_adam.*', not '.*'"),
        (
            {"tempering": pg.Tempering(start=0.5)},
            r"tempering=None, not Tempering\(start=0.5, min_ess_fraction=0.3, rate=0.002\)",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_run_is_resumed_with_its_own_arguments(
    located: pg.APG, begun: Path, options: dict[str, Any], message: str
) -> None:
    arguments = {"key": KEY, "instances": INSTANCES, "optimiser": optax.adam(1e-2), "batch_size": 2}
    arguments |= {"num_sweeps": 1, "num_particles": 4} | options
    with pytest.raises(ValueError, match=f"the run in .* was made with {message}; keep that, or start a new run"):
        located.fit(**arguments, num_steps=3, checkpoints=begun, resume=True, progress=False)


def test_a_run_beyond_its_last_step_is_refused(located: pg.APG, begun: Path) -> None:
    with pytest.raises(pg.CheckpointError, match="is at step 2, beyond num_steps=1"):
        fit(located, num_steps=1, checkpoints=begun, resume=True)
    assert read_about(begun)["step"] == 2


def test_an_optimiser_of_another_version_is_identified_by_its_state(
    located: pg.APG, begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names inside Optax may change between versions, but the optimiser's state must fit."""
    monkeypatch.setattr(checkpoint, "versions", lambda: {"optax": "a later one"})
    with pytest.raises(pg.CheckpointError, match="belongs to a different optimiser: it holds 'optimiser/0/count'"):
        fit(located, checkpoints=begun, resume=True, optimiser=optax.sgd(1e-2))


# Gradients that are not finite ------------------------------------------------------------------------------------------


class Brittle(eqx.Module):
    """A proposal whose gradient, but not its value, is NaN on instances of zeros."""

    a: jax.Array

    def __call__(self, data: Any, latents: Any, model: Any) -> None:
        numpyro.sample("mu", dist.Normal(jnp.sqrt(self.a * jnp.abs(data["x"][0])), 1.0))


@pytest.fixture(scope="module")
def brittle() -> pg.APG:
    return located_sampler(Brittle(jnp.float32(0.5)), example={"x": INSTANCES["x"][0]})


def test_step_with_a_gradient_that_is_not_finite_changes_nothing(brittle: pg.APG) -> None:
    def batch_of(*rows: Any) -> Any:
        axes = parse_axes({"x": "points"})
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(complete({"x": jnp.asarray(row)}, axes) for row in rows))

    good, bad = batch_of([1.0, 2.0], [0.5, 1.0]), batch_of([1.0, 2.0], [0.0, 0.0])
    optimiser = optax.adam(1e-2)
    step = TrainingStep(brittle.built, optimiser, Budget(num_particles=3, num_sweeps=1, batch_size=2))
    begun, _ = step(start(brittle.built, KEY, optimiser), good)
    skipped, metrics = step(begun, bad)
    assert metrics.finite.tolist() == [False, True, True]
    for before, after in zip(*(jax.tree.leaves((s.arrays, s.optimiser)) for s in (begun, skipped)), strict=True):
        np.testing.assert_array_equal(before, after)
    twice, _ = step(skipped, bad)
    assert [int(n) for n in (twice.step, twice.skipped, twice.skipped_in_a_row)] == [3, 2, 2]
    after, metrics = step(twice, good)
    assert metrics.finite.tolist() == [True, True, True]
    assert [int(n) for n in (after.step, after.skipped, after.skipped_in_a_row)] == [4, 2, 0]
    assert np.all(np.asarray(jax.tree.leaves(after.arrays)) != np.asarray(jax.tree.leaves(begun.arrays)))
    assert np.all(np.isfinite(np.asarray(jax.tree.leaves(after.arrays))))


def test_many_failed_steps_in_a_row_stop_the_run_and_name_the_block(
    brittle: pg.APG, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "MAX_SKIPPED_IN_A_ROW", 3)
    with pytest.raises(FloatingPointError, match=r"gradient of block 'mu' was not finite in the last 4 steps \(step 4\)"):
        fit(brittle, instances={"x": np.zeros((2, 3))}, report_every=2)


def test_gradients_of_the_initial_sampler_are_checked_too(
    located: pg.APG, brittle: pg.APG, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "MAX_SKIPPED_IN_A_ROW", 3)
    started = located.with_blocks(located.blocks, initial=brittle)
    with pytest.raises(FloatingPointError, match="gradient of the initial sampler was not finite in the last 4 steps"):
        fit(started, instances={"x": np.zeros((2, 3))}, report_every=2)


# Parts of a batch and devices -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("microbatch_size", [1, 3, 4])
def test_a_step_does_not_depend_on_the_microbatch_size(located: pg.APG, microbatch_size: int) -> None:
    """A size of four does not divide six instances, so they are processed in threes."""
    batch = jax.vmap(lambda x: complete({"x": x}, located.axes))(INSTANCES["x"])
    optimiser = optax.sgd(0.1)

    def one_step(**parts: int) -> Any:
        budget = Budget(num_particles=3, num_sweeps=1, batch_size=6, **parts)
        state, metrics = TrainingStep(located.built, optimiser, budget)(start(located.built, KEY, optimiser), batch)
        return state.arrays, metrics

    whole, by_parts = one_step(), one_step(microbatch_size=microbatch_size)
    begun = eqx.filter(located.built, eqx.is_inexact_array)
    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (begun, whole[0])), strict=True))
    for wanted, found in zip(*map(jax.tree.leaves, (whole, by_parts)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


SCRIPT = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
jax.config.update("jax_disable_most_optimizations", True)
import numpy as np
from test_training import numbers
assert jax.device_count() == int(sys.argv[1])
np.savez(sys.argv[2], *numbers())
"""


def numbers() -> list[np.ndarray]:
    """The arrays after a short training and samples with them, in batches that two devices cannot share evenly."""
    fitted = fit(located_sampler(), num_steps=3, batch_size=3).sampler
    posterior = fitted.sample(KEY, INSTANCES, num_sweeps=1, num_particles=3, batch_size=5)
    draws = np.stack([posterior[i]["mu"] for i in range(len(posterior))])
    return [*arrays(fitted), draws, posterior.log_evidence, posterior.weights]


def test_results_do_not_depend_on_the_number_of_devices(tmp_path: Path) -> None:
    count = 2 if jax.device_count() == 1 else 1
    command = [sys.executable, "-c", SCRIPT, str(count), str(tmp_path / "numbers.npz")]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=300)
    found = np.load(tmp_path / "numbers.npz")
    for name, wanted in zip(found.files, numbers(), strict=True):
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-5)


def not_a_number(x):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, jnp.sqrt(-1.0 - mu**2)), obs=x)


def test_a_model_without_a_finite_log_joint_stops_training_at_once():
    apg = pg.APG(not_a_number, data={"x": "points"}, blocks=located_sampler().blocks)
    with pytest.raises(FloatingPointError, match=r"log-probability of 'x' was not finite at any first draw.*step 1\)"):
        apg.fit(KEY, [{"x": np.ones(4, np.float32)}] * 4, num_steps=200, batch_size=4, progress=False)


def test_sampling_from_such_a_model_names_the_site():
    apg = pg.APG(not_a_number, data={"x": "points"}, blocks=located_sampler().blocks)
    with pytest.warns(UserWarning, match=r"weights failed on 2 of 2 instances.*no first draw.*'x'"):
        apg.sample(KEY, [{"x": np.ones(4, np.float32)}] * 2, num_sweeps=1)
