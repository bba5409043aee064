"""`APG`: the parts put together for users."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import optax

from popgibbs._arguments import as_key, whole_number
from popgibbs._typing import KeyLike, Model, PRNGKey, Resampler, Tracker, UpdateModel, Values
from popgibbs.building import build
from popgibbs.data import Finite, Simulated, Source, as_instances, into_buckets, largest, parse_axes
from popgibbs.model import TRACING
from popgibbs.posterior import Part, Posterior
from popgibbs.running import Runner
from popgibbs.smc import Block, BuiltSampler, systematic
from popgibbs.training import (
    SAMPLER,
    Budget,
    Checkpoints,
    History,
    Tempering,
    digest_of,
    from_names,
    made_with,
    read,
    run_training,
    sampling_progress,
    to_names,
    training_progress,
)

SAMPLE_BATCH = 100  # instances that are sampled at once by default: large enough for speed, small enough for memory


class APG:
    """An amortized population Gibbs sampler for a NumPyro model.

    `data` declares the axes of the model's arguments, `{"x": "points"}`: the leading axis of `x` is the plate `points`
    (a tuple names more axes, None leaves one out). The model, the blocks and the data are checked against each other
    when the sampler meets its first instance: at once if you pass an `example`, else in `fit` or `sample`.

    `initial` is another sampler of the same model whose initial proposals draw the first particles; blocks then need
    none.
    """

    def __init__(
        self,
        model: Model,
        *,
        data: Mapping[str, str | Sequence[str | None]],
        blocks: Sequence[Block],
        example: Any = None,
        initial: "APG | None" = None,
        resample: Resampler = systematic,
        ess_threshold: float = 1.0,
    ):
        self.model = model
        self.axes = parse_axes(data)
        self.blocks = tuple(blocks)
        self.initial = initial
        self._resample = resample
        self._resample_below = ess_threshold
        self._built: BuiltSampler | None = None
        if example is not None:
            self.check(example)

    def check(self, example: Any) -> BuiltSampler:
        """Check the sampler against an example instance, once."""
        with TRACING:  # threads that meet the sampler at once build it once
            if self._built is None:
                self._built = self._build(example)
        return self._built

    def _build(self, example: Any) -> BuiltSampler:
        instance = example if isinstance(example, Mapping) else {next(iter(self.axes), "x"): example}
        (values,) = as_instances([instance], self.axes)
        first = None if self.initial is None else self.initial.check(values)
        return build(self.model, self.blocks, self.axes, values, self._resample, self._resample_below, first)

    def _check_padding(self, sampler: BuiltSampler, is_padded: bool, instances: Sequence[Values]) -> None:
        """Refuse to pad where that would change a number."""
        if not is_padded:
            return
        if sampler.small_example:  # on few elements padding may change nothing that it changes on more
            with TRACING:
                sampler = self._build(largest(instances, self.axes))
        if sampler.cannot_pad:
            raise ValueError(f"instances of different sizes are padded to one, but {sampler.cannot_pad}")

    @property
    def built(self) -> BuiltSampler:
        """The checked sampler; it exists after `check`, `fit` or `sample`."""
        if self._built is None:
            raise ValueError("this sampler has not met an instance; call check(example), fit or sample first")
        return self._built

    def with_blocks(self, blocks: Sequence[Block], initial: "APG | None" = None) -> "APG":
        """Another sampler of the same model and data."""
        return APG(
            self.model,
            data=dict(self.axes),
            blocks=blocks,
            initial=initial,
            resample=self._resample,
            ess_threshold=self._resample_below,
        )

    def like(self, built: BuiltSampler) -> "APG":
        """This sampler with other arrays."""
        new = self.with_blocks(built.blocks, self.initial)
        new.model, new._built = built.model, built
        return new

    def fit(
        self,
        key: KeyLike,
        instances: Any,
        *,
        num_steps: int,
        num_sweeps: int = 4,
        num_particles: int = 10,
        batch_size: int = 20,
        optimiser: optax.GradientTransformation | None = None,
        tempering: Tempering | None = None,
        update_model: UpdateModel = "every_block",
        microbatch_size: int | None = None,
        checkpoints: str | Path | None = None,
        checkpoint_every: int = 1000,
        resume: bool = False,
        step: int | None = None,
        configuration: Mapping[str, Any] | None = None,
        report_every: int = 50,
        trackers: Sequence[Tracker] = (),
        on_checkpoint: Callable[[int, "APG"], None] | None = None,
        progress: bool = True,
    ) -> "Fit":
        """Train the proposals, and the model if it has arrays, on instances or on a simulator `key -> instance`.

        `tempering` starts with a flattened likelihood, for models whose weights collapse from a cold start.
        `update_model` says when the model does: at the initial step and after all `"blocks"`, as in the paper, or at the
        end of all `"sweeps"`, when everything has been updated.
        `microbatch_size` is how many instances of its part of the batch a device works on at a time: fewer need less
        memory, and where instances are large they can be faster.
        `checkpoints` names a directory, for this run alone; with `resume` the run there continues bit for bit, from its
        newest checkpoint that can be read or from that of `step`, with the same arguments except `num_steps`, which may
        grow. The first SIGINT or SIGTERM saves after the current step and stops the run with `Interrupted`, the second
        ends it at once. `on_checkpoint` is called with the step and the sampler after every regular checkpoint.

        Raises:
            ValueError: an argument is out of range, or not that of the run which is resumed.
            CheckpointError: the directory cannot be written or read, or another process trains there.
        """
        key = as_key(key)
        num_steps = whole_number("num_steps", num_steps, 1)
        checkpoint_every = whole_number("checkpoint_every", checkpoint_every, 1)
        report_every = whole_number("report_every", report_every, 1)
        optimiser = optax.adam(1e-3) if optimiser is None else optimiser
        if not isinstance(optimiser, optax.GradientTransformation):
            raise ValueError(f"optimiser must be one of optax, such as optax.adam(1e-3), not {type(optimiser).__name__}")
        if checkpoints is None and (on_checkpoint is not None or resume):
            needing = "resume" if resume else "on_checkpoint"
            raise ValueError(f"{needing} needs a directory for checkpoints")
        step = None if step is None else whole_number("step", step, 0)
        if step is not None and not resume:
            raise ValueError(f"step={step} is for a run that is resumed; add resume=True")
        budget = Budget(
            num_particles=whole_number("num_particles", num_particles),
            num_sweeps=whole_number("num_sweeps", num_sweeps),
            batch_size=whole_number("batch_size", batch_size),
            update_model=update_model,
            microbatch_size=None if microbatch_size is None else whole_number("microbatch_size", microbatch_size),
        )
        source, listed = self._source(key, instances)
        sampler = self.check(largest(listed, self.axes))
        self._check_padding(sampler, source.is_padded, listed)
        with ExitStack() as stack:
            saved = None
            if checkpoints is not None:
                told = "a simulator" if callable(instances) else _told(listed)
                run = made_with(key, told, budget, optimiser, tempering)
                saved = Checkpoints(checkpoints, configuration, run)
                stack.callback(saved.close)
                if saved.latest is not None and not resume:
                    raise ValueError(f"{checkpoints} already holds a run; resume it or choose another directory")
            if progress:
                begun = (step or saved.latest or 0) if saved is not None else 0
                labels = [block.name for block in sampler.blocks]
                trackers = [*trackers, stack.enter_context(training_progress(num_steps, labels, num_particles, begun))]
            trained, history, _ = run_training(
                sampler,
                key,
                source,
                num_steps=num_steps,
                budget=budget,
                optimiser=optimiser,
                tempering=tempering,
                checkpoints=saved,
                checkpoint_every=checkpoint_every,
                resume=resume,
                resume_step=step,
                report_every=report_every,
                trackers=trackers,
                on_checkpoint=on_checkpoint and (lambda step, trained: on_checkpoint(step, self.like(trained))),
            )
        return Fit(self.like(trained), history)

    def _source(self, key: PRNGKey, instances: Any) -> tuple[Source, list[Values]]:
        """Where batches come from, and its instances, or one of them if they are simulated."""
        if callable(instances):

            def simulator(key: PRNGKey) -> Any:
                with TRACING:  # it may be a NumPyro program
                    return instances(key)

            example = jax.device_get(jax.jit(simulator)(key))
            if not isinstance(example, Mapping):
                raise ValueError(f"the simulator must return a dict of arrays, but it returned {type(example).__name__}")
            return Simulated(simulator, self.axes), as_instances([dict(example)], self.axes)
        listed = as_instances(instances, self.axes)
        return Finite(listed, self.axes, seed=int(jax.random.randint(key, (), 0, 2**31 - 1))), listed

    def sample(
        self,
        key: KeyLike,
        instances: Any,
        *,
        num_sweeps: int = 19,
        num_particles: int = 10,
        num_populations: int = 1,
        batch_size: int = SAMPLE_BATCH,
        progress: bool = False,
    ) -> Posterior:
        """Posterior samples of each instance; `num_sweeps=0` is importance sampling by the initial proposal.

        Results depend on the key and an instance's index. The batch size, the padded size and the number of devices
        change them by rounding only.
        """
        key = as_key(key)
        num_sweeps = whole_number("num_sweeps", num_sweeps, 0)
        num_particles = whole_number("num_particles", num_particles, 1)
        num_populations = whole_number("num_populations", num_populations, 1)
        batch_size = whole_number("batch_size", batch_size, 1)
        listed = as_instances(instances, self.axes)
        sampler = self.check(largest(listed, self.axes))
        runner = Runner(
            sampler=sampler, num_particles=num_particles, num_populations=num_populations, batch_size=batch_size
        )
        with sampling_progress(len(listed)) if progress else nullcontext() as report:
            buckets = into_buckets(listed, self.axes)
            self._check_padding(sampler, any(bucket.is_padded for bucket in buckets), listed)
            parts = [Part(bucket, *runner.run(key, bucket, num_sweeps, report=report)) for bucket in buckets]
        posterior = Posterior(runner, parts)
        posterior.warn()
        return posterior

    def save(self, directory: str | Path, configuration: Mapping[str, Any] | None = None) -> None:
        """Write the sampler's arrays, without a training state; the newest of a directory is what `load` reads."""
        with closing(Checkpoints(directory, configuration)) as checkpoints:
            step = 0 if checkpoints.latest is None else checkpoints.latest + 1
            checkpoints.save(step, {SAMPLER: eqx.filter(self.built, eqx.is_inexact_array)})

    def load(self, directory: str | Path, step: int | None = None) -> "APG":
        """This sampler with the arrays of a checkpoint in a directory, of a run or of `save`.

        That is the newest, or the one before with a warning if the newest is damaged; `step` chooses one.

        Raises:
            CheckpointError: there is none, it is damaged, or it is of another sampler.
        """
        arrays, static = eqx.partition(self.built, eqx.is_inexact_array)
        found = read(directory, step)
        restored = from_names(found.sampler, {SAMPLER: arrays}, str(found.path), widen=True)[SAMPLER]
        return self.like(eqx.combine(restored, static))


def _told(instances: Sequence[Values]) -> str:
    """A text that differs between sets of instances."""
    return f"{len(instances)} with SHA-256 {digest_of(jax.device_get(to_names(instances)))[:16]}"


@dataclass(frozen=True)
class Fit:
    """A trained sampler and the numbers of its training."""

    sampler: APG
    history: History
