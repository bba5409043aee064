"""The training loop, which reports, saves, and can be stopped and resumed.

The randomness of a step depends only on the key and the step's number, so a resumed run continues bit for bit.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.random import fold_in

from popgibbs._reuse import reused, shape_of
from popgibbs._typing import PRNGKey, Tracker
from popgibbs.data import Source
from popgibbs.smc import BuiltSampler
from popgibbs.training.checkpoint import Checkpoints
from popgibbs.training.naming import CheckpointError, to_names
from popgibbs.training.provenance import hyperparameters
from popgibbs.training.signals import Held, Interrupted, held_back
from popgibbs.training.step import Budget, Metrics, State, TrainingStep, start
from popgibbs.training.tempering import Tempering

MAX_SKIPPED_IN_A_ROW = 100


@dataclass(frozen=True)
class History:
    """The metrics of the reported steps."""

    steps: list[int] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)

    def __getitem__(self, name: str) -> np.ndarray:
        """One metric over the reported steps."""
        return np.array([entry[name] for entry in self.metrics])


def made_with(
    key: PRNGKey,
    instances: str,
    budget: Budget,
    optimiser: optax.GradientTransformation,
    tempering: Tempering | None,
) -> dict[str, Any]:
    """The arguments that a resumed run must share with the one it continues, by the names of `fit`'s arguments.

    They exclude the number of steps, which may grow, and `microbatch_size`, which changes rounding only.
    """
    return {
        "key": str(np.asarray(to_names(key)[""]).tolist()),
        "instances": instances,
        **{name: value for name, value in asdict(budget).items() if name not in ("microbatch_size", "from_model")},
        "optimiser": hyperparameters(optimiser),
        "tempering": None if tempering is None else repr(tempering),
    }


def run_training(
    sampler: BuiltSampler,
    key: PRNGKey,
    source: Source,
    *,
    num_steps: int,
    budget: Budget,
    optimiser: optax.GradientTransformation,
    tempering: Tempering | None = None,
    checkpoints: Checkpoints | None = None,
    checkpoint_every: int = 1000,
    resume: bool = False,
    resume_step: int | None = None,
    report_every: int = 50,
    trackers: Sequence[Tracker] = (),
    on_checkpoint: Callable[[int, BuiltSampler], None] | None = None,
) -> tuple[BuiltSampler, History, State]:
    """Train until `num_steps`, from the beginning or from a checkpoint, by default the newest readable one."""
    state = start(sampler, key, optimiser, tempering)
    if resume and checkpoints is not None and (checkpoints.latest is not None or resume_step is not None):
        state = checkpoints.restore(state, resume_step)
        if int(state.step) > num_steps:
            raise CheckpointError(
                f"the run in {checkpoints.directory} is at step {int(state.step)}, beyond num_steps={num_steps}"
            )
    # The programs of a step take the sampler's numbers as inputs, so an equal sampler with other numbers shares them.
    of = (shape_of(sampler), optimiser, budget, tempering)
    step_on = reused(TrainingStep, sampler, optimiser, budget, tempering, of=of)
    state = step_on.sum.on_first(state)
    history, first = History(), int(state.step)
    with ExitStack() as stack:
        stop = Held()
        for step in range(first, num_steps):
            batch = source.batch(fold_in(key, 2 * step + 1), step, budget.batch_size)
            before = state
            state, metrics = step_on(state, batch)
            # One step computes while the next is dispatched; a longer queue would keep signals waiting.
            jax.block_until_ready(before)
            if step == first and checkpoints is not None:  # from here on a signal waits for a save
                stop = stack.enter_context(held_back())
            done = step + 1
            if step == first:
                _check_possible(metrics, sampler, done)
            if done % report_every == 0 or done == num_steps:
                _report(history, done, metrics, state, sampler, trackers)
            regular = done % checkpoint_every == 0 or done == num_steps
            if checkpoints is not None and (regular or stop.number is not None):
                checkpoints.save(done, state)
                if on_checkpoint is not None and regular:
                    on_checkpoint(done, _trained(sampler, state))
            if stop.number is not None and done < num_steps:
                raise Interrupted(f"stopped after step {done}", stop.number)
    return _trained(sampler, state), history, state


def _trained(sampler: BuiltSampler, state: State) -> BuiltSampler:
    # Through the host, so that the trained arrays are not committed to the device that updated them.
    trained = jax.tree.map(jnp.asarray, jax.device_get(state.arrays))
    return eqx.combine(trained, eqx.filter(sampler, eqx.is_inexact_array, inverse=True))


def _check_possible(metrics: Metrics, sampler: BuiltSampler, step: int) -> None:
    """Stop a run that cannot learn, because some site has no finite log-probability in any first draw of a batch."""
    possible = np.asarray(metrics.possible)
    if culprits := [site.name for site, fraction in zip(sampler.sites, possible, strict=True) if fraction == 0]:
        raise FloatingPointError(
            f"the log-probability of '{culprits[0]}' was not finite at any first draw of the batch (step {step}), so "
            "training is impossible; look for log(0), negative scales and data outside the site's support"
        )


def _report(
    history: History, step: int, metrics: Metrics, state: State, sampler: BuiltSampler, trackers: Sequence[Tracker]
) -> None:
    _check_possible(metrics, sampler, step)
    numbers = {name: np.asarray(value) for name, value in metrics._asdict().items()}
    numbers["skipped"] = np.asarray(state.skipped)
    if int(state.skipped_in_a_row) >= MAX_SKIPPED_IN_A_ROW:
        owners = [f"block '{block.name}'" for block in sampler.blocks] + ["the model", "the initial sampler"]
        culprits = [owner for owner, finite in zip(owners, numbers["finite"], strict=True) if not finite]
        raise FloatingPointError(
            f"the gradient of {' and '.join(culprits) or 'some block'} was not finite in the last "
            f"{int(state.skipped_in_a_row)} steps (step {step}); lower the learning rate, clip gradients, or check "
            "that its log-probabilities are finite"
        )
    history.steps.append(step)
    history.metrics.append(numbers)
    for tracker in trackers:
        tracker(step, numbers)
