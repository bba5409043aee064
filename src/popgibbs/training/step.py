"""One training step: the gradient of a batch, and the optimiser's update."""

from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.random import fold_in
from jaxtyping import Array

from popgibbs._reuse import reused, shape_of
from popgibbs._typing import PRNGKey, UpdateModel
from popgibbs.data import Data
from popgibbs.running import instance_keys
from popgibbs.smc import BuiltSampler, weighted_sum
from popgibbs.training.objective import Gradient, accumulate
from popgibbs.training.pairs import accumulate_pairs
from popgibbs.training.tempering import Temper, Tempering
from popgibbs.training.transport import DeviceSum


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The budget of a training step."""

    num_particles: int = 10
    num_sweeps: int = 4  # after the initial proposal; the paper's K is one more
    batch_size: int = 20
    update_model: UpdateModel = "every_block"
    from_model: bool = False  # learn from pairs of instances and latents that the model draws, without sampling
    microbatch_size: int | None = None  # instances that a device works on at a time; None: its whole part

    def __post_init__(self) -> None:
        if self.update_model not in get_args(UpdateModel):
            raise ValueError(f"update_model='{self.update_model}' is neither 'every_block' nor 'every_sweep'")
        for name, least in [("num_particles", 1), ("num_sweeps", 0), ("batch_size", 1), ("microbatch_size", 1)]:
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name}={value} must be at least {least}")


class State(NamedTuple):
    """Everything that a run needs to continue."""

    arrays: Any  # the sampler's inexact arrays
    optimiser: Any
    key: PRNGKey
    step: Array
    skipped: Array  # steps whose gradient was not finite
    skipped_in_a_row: Array
    temper: Temper


class Metrics(NamedTuple):
    """Metrics of one step, averaged over its batch."""

    loss: Array  # by block: −Σ w̄ log q, summed over sweeps
    ess: Array  # by block, of the last sweep
    acceptance: Array  # by block, of the last sweep
    log_joint: Array  # after the last sweep
    log_evidence: Array
    finite: Array  # of each block, the model and the initial sampler: whether its gradient was finite
    beta: Array  # the power of the likelihood; 1 unless the run is tempered
    possible: Array  # by site: the fraction of instances with a first draw whose log-probability is finite


def start(
    sampler: BuiltSampler, key: PRNGKey, optimiser: optax.GradientTransformation, tempering: Tempering | None = None
) -> State:
    arrays = eqx.filter(sampler, eqx.is_inexact_array)
    zero = jnp.zeros((), jnp.int32)
    temper = Temper.begin(tempering, len(sampler.blocks))
    return State(arrays, optimiser.init(arrays), key, zero, zero, zero, temper)


class Means(NamedTuple):
    """Numbers of a batch, averaged over instances."""

    ess: Array  # by block, of the last sweep
    acceptance: Array  # by block, of the last sweep
    log_joint: Array  # after the last sweep
    log_evidence: Array
    possible: Array  # by site: the fraction of instances with a first draw whose log-probability is finite


def _gradient_sum(sampler: BuiltSampler, budget: Budget, tempered: bool) -> DeviceSum:
    """The gradient and the means of a batch, summed over its rows by all devices."""
    arrays, static = eqx.partition(sampler, eqx.is_inexact_array)
    beta = jnp.zeros(())

    def of_rows(shared: tuple[Any, Array], rows: tuple[Array, Array, Data]) -> tuple[Gradient, Means]:
        (arrays, beta), (keys, weights, batch) = shared, rows
        if budget.from_model:
            gradient, pairs = accumulate_pairs(eqx.combine(arrays, static), keys, batch, instance_weights=weights)
            unknown = jnp.full(weights.shape, jnp.nan)  # nothing was sampled
            by_block = jnp.full(pairs.acceptance.shape, jnp.nan)
            numbers = (by_block, pairs.acceptance, pairs.log_joint, unknown, pairs.finite)
            return gradient, Means(*(weighted_sum(weights, number.T, axis=-1) for number in numbers))
        gradient, info = accumulate(
            eqx.combine(arrays, static),
            keys,
            batch,
            num_sweeps=budget.num_sweeps,
            num_particles=budget.num_particles,
            update_model=budget.update_model,
            instance_weights=weights,
            beta=beta if tempered else None,
        )
        finite = info.finite[0].astype(info.ess.dtype)
        last = (info.ess[-1], info.acceptance[-1], info.mean_log_joint[-1], info.log_evidence[-1], finite)
        return gradient, Means(*(weighted_sum(weights, number[:, 0].T, axis=-1) for number in last))

    by_block, by_site = jnp.zeros(len(sampler.blocks)), jnp.zeros(len(sampler.sites))
    return DeviceSum(
        of_rows,
        num_rows=budget.batch_size,
        shared=(arrays, beta),
        result=(Gradient(arrays, by_block, by_block), Means(by_block, by_block, beta, beta, by_site)),
        microbatch_size=budget.microbatch_size,
    )


class TrainingStep:
    """A training step on a batch of instances; `transport.py` handles the devices."""

    def __init__(
        self,
        sampler: BuiltSampler,
        optimiser: optax.GradientTransformation,
        budget: Budget,
        tempering: Tempering | None = None,
    ):
        tempered = tempering is not None
        # Most of the compilation is here, and does not depend on the optimiser.
        of = (shape_of(sampler), budget, tempered)
        self.sum = reused(_gradient_sum, sampler, budget, tempered, of=of)

        def inputs(state: State) -> tuple[Array, Array, Array]:
            indices = jnp.arange(self.sum.num_rows)
            keys = instance_keys(fold_in(state.key, 2 * state.step), jnp.asarray(self.sum.rows))
            weights = jnp.where(indices < budget.batch_size, 1 / budget.batch_size, 0.0)
            return self.sum.pack((state.arrays, jnp.exp(state.temper.log_beta))), keys, weights

        def apply(state: State, summed: Array) -> tuple[State, Metrics]:
            gradient, means = self.sum.unpack(summed)
            new, metrics = _apply(optimiser, state, gradient, means)
            if tempering is not None:
                new = new._replace(temper=tempering.advance(state.temper, gradient.ess_fraction))
            return new, metrics

        self.inputs, self.apply = jax.jit(inputs), jax.jit(apply)

    def __call__(self, state: State, batch: Data) -> tuple[State, Metrics]:
        shared, keys, weights = self.inputs(state)
        return self.apply(state, self.sum(shared, (keys, weights, batch)))


def _apply(
    optimiser: optax.GradientTransformation,
    state: State,
    gradient: Gradient,
    means: Means,
) -> tuple[State, Metrics]:
    """The optimiser's update, unless the gradient is not finite."""
    parts = (*gradient.arrays.blocks, gradient.arrays.model, gradient.arrays.first)
    finite = jnp.stack([_all_finite(tree) for tree in parts])
    good = jnp.all(finite)
    updates, optimiser_state = optimiser.update(gradient.arrays, state.optimiser, state.arrays)
    proposed = (optax.apply_updates(state.arrays, updates), optimiser_state)
    # A gradient that is not finite changes neither the arrays nor the optimiser's state.
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
    return new, Metrics(gradient.loss, *means[:-1], finite=finite, beta=beta, possible=means.possible)


def _all_finite(tree: Any) -> Array:
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.ones((), bool)
