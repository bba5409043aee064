"""Training: a state, a compiled step, and a loop that reports, saves and can be stopped and resumed.

A step's randomness depends on the key and the step's number only, so a resumed run continues bit for bit.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.random import fold_in
from jaxtyping import Array

from popgibbs._typing import ModelLearns, PRNGKey, Tracker
from popgibbs.data import Data, Source
from popgibbs.running import BY_INSTANCE, SHARED, filled_up, mesh_for, on_all, on_first, over_instances
from popgibbs.smc import Sampler, weighted_sum
from popgibbs.training.checkpoint import CheckpointError, Checkpoints, to_names
from popgibbs.training.objective import Gradient, accumulate
from popgibbs.training.provenance import hyperparameters
from popgibbs.training.signals import Held, Interrupted, held_back
from popgibbs.training.tempering import Temper, Tempering

MAX_SKIPPED_IN_A_ROW = 100


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a training step spends."""

    num_particles: int = 10
    num_sweeps: int = 4  # after the initial proposal; the paper's K is one more
    batch_size: int = 20
    model_learns: ModelLearns = "blocks"
    at_once: int | None = None  # instances that a device works on at once; by default all of its share

    def __post_init__(self) -> None:
        if self.model_learns not in get_args(ModelLearns):
            raise ValueError(f"model_learns='{self.model_learns}' is neither 'blocks' nor 'sweeps'")
        for name, least in [("num_particles", 1), ("num_sweeps", 0), ("batch_size", 1), ("at_once", 1)]:
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name}={value} must be at least {least}")


class State(NamedTuple):
    """All that a run needs to go on."""

    arrays: Any  # the sampler's inexact arrays
    optimiser: Any
    key: PRNGKey
    step: Array
    skipped: Array  # steps whose gradient was not finite
    skipped_in_a_row: Array
    temper: Temper


class Metrics(NamedTuple):
    """Means over the batch of one step; by block where it says so."""

    loss: Array  # by block: −Σ w̄ log q, summed over sweeps
    ess: Array  # by block, of the last sweep
    acceptance: Array  # by block, of the last sweep
    log_joint: Array  # after the last sweep
    log_evidence: Array
    finite: Array  # by block, then the model, then the initial sampler: whether the gradient was finite
    beta: Array  # the power of the likelihood; 1 unless the run is tempered
    possible: Array  # by site: the share of instances with a first draw whose log-probability is finite


@dataclass(frozen=True)
class History:
    """Numbers of the steps that were reported."""

    steps: list[int] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)

    def __getitem__(self, name: str) -> np.ndarray:
        """One number over the reported steps."""
        return np.array([entry[name] for entry in self.metrics])


def made_with(
    key: PRNGKey,
    instances: str,
    budget: Budget,
    optimiser: optax.GradientTransformation,
    tempering: Tempering | None,
) -> dict[str, Any]:
    """What a resumed run must have in common with the one it continues, by the names of `fit`'s arguments.

    Not among it are the number of steps, which may grow, and `at_once`, which changes rounding only.
    """
    return {
        "key": str(np.asarray(to_names(key)[""]).tolist()),
        "instances": instances,
        **{name: value for name, value in asdict(budget).items() if name != "at_once"},
        "optimiser": hyperparameters(optimiser),
        "tempering": None if tempering is None else repr(tempering),
    }


def start(
    sampler: Sampler, key: PRNGKey, optimiser: optax.GradientTransformation, tempering: Tempering | None = None
) -> State:
    arrays = eqx.filter(sampler, eqx.is_inexact_array)
    zero = jnp.zeros((), jnp.int32)
    temper = Temper.begin(tempering, len(sampler.blocks))
    return State(arrays, optimiser.init(arrays), key, zero, zero, zero, temper)


class Step:
    """A training step on a batch: gradients, each device for its share of the instances, then the optimiser's update.

    What travels between devices is one vector each way: to send a dozen small arrays took a fifth of a step.
    """

    def __init__(
        self,
        sampler: Sampler,
        optimiser: optax.GradientTransformation,
        budget: Budget,
        tempering: Tempering | None = None,
    ):
        arrays, static = eqx.partition(sampler, eqx.is_inexact_array)
        _, unravel = ravel_pytree(arrays)
        num_rows = filled_up(budget.batch_size)
        # Rows beyond the batch repeat its last instance, and count for nothing.
        self.instances = np.minimum(np.arange(num_rows), budget.batch_size - 1)
        self.mesh = mesh_for(num_rows)

        def send(state: State) -> tuple[Array, Array, Array, Array]:
            keys = instance_keys(fold_in(state.key, 2 * state.step), jnp.asarray(self.instances))
            shares = jnp.where(jnp.arange(num_rows) < budget.batch_size, 1 / budget.batch_size, 0.0)
            return ravel_pytree(state.arrays)[0], keys, shares, jnp.exp(state.temper.log_beta)

        def of_instances(arrays: Any, keys: Array, shares: Array, batch: Data) -> tuple[Gradient, tuple[Array, ...]]:
            gradient, info = accumulate(
                eqx.combine(arrays, static),
                keys,
                batch,
                num_sweeps=budget.num_sweeps,
                num_particles=budget.num_particles,
                model_learns=budget.model_learns,
                shares=shares,
            )
            last = (info.ess[-1], info.acceptance[-1], info.log_joint[-1], info.log_evidence[-1])
            first_finite = info.finite[0].astype(info.ess.dtype)
            return gradient, tuple(weighted_sum(shares, number[:, 0].T, axis=-1) for number in (*last, first_finite))

        def local(vector: Array, keys: Array, shares: Array, beta: Array, batch: Data) -> Array:
            if tempering is not None:
                batch = replace(batch, temper=jnp.broadcast_to(beta, keys.shape))
            arrays = unravel(vector)
            parts = (keys, shares, batch)
            return sum_in_parts(lambda part: ravel_pytree(of_instances(arrays, *part))[0], parts, budget.at_once)[None]

        def apply(state: State, by_device: Array) -> tuple[State, Metrics]:
            num_blocks = len(sampler.blocks)
            by_block = jnp.zeros(num_blocks)
            numbers = (by_block, by_block, jnp.zeros(()), jnp.zeros(()), jnp.zeros(len(sampler.sites)))
            like = (Gradient(state.arrays, by_block, by_block), numbers)
            gradient, means = ravel_pytree(like)[1](jnp.sum(by_device, axis=0))
            new, metrics = _apply(optimiser, state, gradient, *means)
            if tempering is not None:
                new = new._replace(temper=tempering.advance(state.temper, gradient.share))
            return new, metrics

        self.send = jax.jit(send)
        specs = (SHARED, BY_INSTANCE, BY_INSTANCE, SHARED, BY_INSTANCE)
        self.gradients = jax.jit(over_instances(local, self.mesh, specs, BY_INSTANCE))
        self.apply = jax.jit(apply)

    def __call__(self, state: State, batch: Data) -> tuple[State, Metrics]:
        if len(self.instances) > jax.tree.leaves(batch)[0].shape[0]:
            batch = jax.tree.map(lambda leaf: leaf[self.instances], batch)
        by_device = self.gradients(*on_all(self.send(state), self.mesh), batch)
        return self.apply(state, on_first(by_device, self.mesh))


def _apply(
    optimiser: optax.GradientTransformation,
    state: State,
    gradient: Gradient,
    ess: Array,
    acceptance: Array,
    log_joint: Array,
    log_evidence: Array,
    possible: Array,
) -> tuple[State, Metrics]:
    """The optimiser's update, unless the gradient is not finite."""
    parts = (*gradient.arrays.blocks, gradient.arrays.model, gradient.arrays.first)
    finite = jnp.stack([_all_finite(tree) for tree in parts])
    good = jnp.all(finite)
    updates, optimiser_state = optimiser.update(gradient.arrays, state.optimiser, state.arrays)
    proposed = (optax.apply_updates(state.arrays, updates), optimiser_state)
    # A gradient that is not finite changes nothing: neither the parameters nor the optimiser's memory.
    arrays, optimiser_state = jax.tree.map(
        lambda new, old: jnp.where(good, new, old), proposed, (state.arrays, state.optimiser)
    )
    new = State(
        arrays,
        optimiser_state,
        state.key,
        state.step + 1,
        state.skipped + jnp.where(good, 0, 1),
        jnp.where(good, 0, state.skipped_in_a_row + 1),
        state.temper,
    )
    beta = jnp.exp(state.temper.log_beta)
    return new, Metrics(gradient.loss, ess, acceptance, log_joint, log_evidence, finite, beta, possible)


def sum_in_parts(of_rows: Callable[[Any], Array], rows: Any, at_once: int | None) -> Array:
    """A sum over rows by the sums of its parts, one after another: even parts of at most `at_once` rows."""
    count = jax.tree.leaves(rows)[0].shape[0]
    size = max(n for n in range(1, min(at_once or count, count) + 1) if count % n == 0)
    if size == count:
        return of_rows(rows)
    parts = jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), rows)
    like = jax.eval_shape(of_rows, jax.tree.map(lambda leaf: leaf[0], parts))
    total, _ = jax.lax.scan(lambda total, part: (total + of_rows(part), None), jnp.zeros(like.shape, like.dtype), parts)
    return total


def instance_keys(key: PRNGKey, indices: Array) -> Array:
    """An instance's key by its index, whatever the batch."""
    return jax.vmap(lambda index: fold_in(key, index))(indices)


def _all_finite(tree: Any) -> Array:
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.ones((), bool)


def run_training(
    sampler: Sampler,
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
    at_checkpoints: Callable[[int, Sampler], None] | None = None,
) -> tuple[Sampler, History, State]:
    """Train until `num_steps`, from the beginning or from a checkpoint, by default the newest that can be read."""
    state = start(sampler, key, optimiser, tempering)
    if resume and checkpoints is not None and (checkpoints.latest is not None or resume_step is not None):
        state = checkpoints.restore(state, resume_step)
        if int(state.step) > num_steps:
            raise CheckpointError(
                f"the run in {checkpoints.directory} is at step {int(state.step)}, beyond num_steps={num_steps}"
            )
    step_on = Step(sampler, optimiser, budget, tempering)
    state = on_first(state, step_on.mesh)
    history, first = History(), int(state.step)
    with ExitStack() as stack:
        stop = Held()
        for step in range(first, num_steps):
            batch = source.batch(fold_in(key, 2 * step + 1), step, budget.batch_size)
            before = state
            state, metrics = step_on(state, batch)
            # One step computes while the next is dispatched; a longer queue would keep signals waiting.
            jax.block_until_ready(before)
            if step == first and checkpoints is not None:  # from now on there is something to save
                stop = stack.enter_context(held_back())
            done = step + 1
            if step == first:
                _check_possible(metrics, sampler, done)
            if done % report_every == 0 or done == num_steps:
                _report(history, done, metrics, state, sampler, trackers)
            regular = done % checkpoint_every == 0 or done == num_steps
            if checkpoints is not None and (regular or stop.number is not None):
                checkpoints.save(done, state)
                if at_checkpoints is not None and regular:
                    at_checkpoints(done, _trained(sampler, state))
            if stop.number is not None and done < num_steps:
                raise Interrupted(f"stopped after step {done}", stop.number)
    return _trained(sampler, state), history, state


def _trained(sampler: Sampler, state: State) -> Sampler:
    # By way of the host, so that the trained arrays are not bound to the device that updated them.
    trained = jax.tree.map(jnp.asarray, jax.device_get(state.arrays))
    return eqx.combine(trained, eqx.filter(sampler, eqx.is_inexact_array, inverse=True))


def _check_possible(metrics: Metrics, sampler: Sampler, step: int) -> None:
    """Stop a run that cannot learn: no first draw of a whole batch has a finite log joint."""
    shares = np.asarray(metrics.possible)
    if culprits := [site.name for site, share in zip(sampler.sites, shares, strict=True) if share == 0]:
        raise FloatingPointError(
            f"the log-probability of '{culprits[0]}' was not finite at any first draw of the batch (step {step}), so "
            "nothing can be learned; look for log(0), negative scales and data outside of the site's support"
        )


def _report(
    history: History, step: int, metrics: Metrics, state: State, sampler: Sampler, trackers: Sequence[Tracker]
) -> None:
    _check_possible(metrics, sampler, step)
    numbers = {name: np.asarray(value) for name, value in metrics._asdict().items()}
    numbers["skipped"] = np.asarray(state.skipped)
    if int(state.skipped_in_a_row) >= MAX_SKIPPED_IN_A_ROW:
        owners = [f"block '{block.label}'" for block in sampler.blocks] + ["the model", "the initial sampler"]
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
