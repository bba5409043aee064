"""`APG`, the sampler that users build, train, run and save."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax

from popgibbs._arguments import as_key, whole_number
from popgibbs._compiling import jit
from popgibbs._typing import KeyLike, Model, PRNGKey, Resampler, Tracker, UpdateModel, Values
from popgibbs.building import build
from popgibbs.data import (
    Bucket,
    Finite,
    Simulated,
    Source,
    as_instances,
    into_buckets,
    largest,
    needs_padding,
    num_shapes,
    parse_axes,
    parse_sizes,
)
from popgibbs.describing import Description, describe
from popgibbs.model import TRACING, Exchangeable, simulate, simulates
from popgibbs.posterior import Part, Posterior
from popgibbs.running import Runner
from popgibbs.smc import Block, Bridge, BuiltSampler, has_arrays, systematic
from popgibbs.training import (
    SAMPLER,
    Budget,
    CheckpointError,
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
    waiting,
)

MOST_EXACT = 4  # sizes that instances may have where they cannot be padded; each is compiled for
SAMPLE_BATCH = 100  # default number of instances sampled at once: large enough for speed, small enough for memory


class APG:
    """An amortized population Gibbs sampler for a NumPyro model (Algorithm 2 of Wu et al. 2020).

    The model, the blocks and the data are checked against each other on the first instance that the sampler sees: at
    construction if you pass an `example`, otherwise in `fit` or `sample`.

    Args:
        model: A NumPyro program for one instance and one particle, called with the instance's arrays by keyword. If it
            is an `eqx.Module`, `fit` trains its floating-point arrays too.
        data: The axes of the model's arguments. `{"x": "points"}` says that the leading axis of `x` is the plate
            `points`; a tuple names several axes, with None for an axis that is not a plate.
        blocks: The blocks of one sweep, in order. Together they cover every latent site. By default one block per latent
            site, in the order of the model, and a `NonCentredBlock` for locations and scales of sites in a plate. Blocks
            without a proposal get one that is built from the model.
        example: An instance to check the sampler against now.
        initial: What draws the first particles instead of the blocks: another sampler of the same model, or a `Bridge`.
            By default a `Bridge()` if every block is built from the model.
        exchangeable: Components that the model does not distinguish, such as `[pg.exchangeable("mu", labels="c")]`;
            summaries are then given in one common labelling. By default those that the sampler finds.
        resample: Maps a key and the log-weights of a population to the index of each new particle's ancestor:
            `systematic`, `stratified`, `residual` or `multinomial`.
        sizes: The sizes to which instances are padded, by plate, such as `{"points": (50, 100, 200)}`; each size is
            compiled for once. By default, instances of one size are not padded, and instances of several are padded to
            at most two sizes.
        ess_threshold: Before each block, resample a population whose effective sample size is below this fraction of
            its particles. The default, 1, resamples unless all weights are equal, as the paper does.

    Raises:
        ValueError: The model, the blocks and the example do not fit together; the message names the site and the block.

    Examples:
        >>> blocks = [pg.Block("mu", proposal=Location(), move=pg.Metropolis())]
        >>> sampler = pg.APG(model, data={"x": "points"}, blocks=blocks, example=instances[0])
        >>> sampler.blocks[0].name
        'mu'
    """

    def __init__(
        self,
        model: Model,
        *,
        data: Mapping[str, str | Sequence[str | None]],
        blocks: Sequence[Block] | None = None,
        example: Any = None,
        initial: "APG | Bridge | None" = None,
        exchangeable: Sequence[Exchangeable] | None = None,
        resample: Resampler = systematic,
        sizes: Mapping[str, Sequence[int]] | None = None,
        ess_threshold: float = 1.0,
    ):
        self.model = model
        self.axes = parse_axes(data)
        self.sizes = parse_sizes(sizes or {}, self.axes)
        self._given_blocks = None if blocks is None else tuple(blocks)
        self.initial = initial
        self._exchangeable = None if exchangeable is None else tuple(exchangeable)
        self._resample = resample
        self._ess_threshold = ess_threshold
        self._built: BuiltSampler | None = None
        self._example: Values | None = None  # the instance that the sampler was checked against
        if example is not None:
            self.check(example)

    def check(self, example: Any) -> BuiltSampler:
        """Check the sampler against an example instance, unless that has been done.

        Args:
            example: An instance: a dict of arrays by argument name, or a bare array if `data` declares one argument.

        Returns:
            The checked sampler, which is also available as `built`.

        Raises:
            ValueError: The model, the blocks and the example do not fit together.

        Examples:
            >>> later = pg.APG(model, data={"x": "points"}, blocks=[pg.Block("tau", proposal=Location())])
            >>> later.check(instances[0])
            Traceback (most recent call last):
            ...
            ValueError: block 'tau' names the site 'tau', which the model does not have; its latent sites are ['mu']
        """
        with TRACING:  # threads that use the sampler at the same time build it once
            if self._built is None:
                instance = example if isinstance(example, Mapping) else {next(iter(self.axes), "x"): example}
                (values,) = as_instances([instance], self.axes)
                self._built, self._example = self._build(values), values
        return self._built

    def _build(self, values: Values, *, learned: bool = False) -> BuiltSampler:
        bridge = self.initial if isinstance(self.initial, Bridge) else None
        first = self.initial.check(values) if isinstance(self.initial, APG) else None
        return build(
            self.model,
            self._given_blocks,
            self.axes,
            values,
            self._resample,
            self._ess_threshold,
            first,
            bridge,
            self._exchangeable,
            learned=learned,
        )

    def _can_pad(self, sampler: BuiltSampler, instances: Sequence[Values]) -> bool:
        """Whether instances may be padded; raises if they have too many sizes to do without."""
        if not needs_padding(instances, self.axes, self.sizes):
            return True
        if sampler.small_example:  # too few elements to show every effect of padding
            with TRACING:
                sampler = self._build(largest(instances, self.axes))
        if not sampler.cannot_pad:
            return True
        if self.sizes or num_shapes(instances, self.axes) > MOST_EXACT:
            raise ValueError(f"instances of different sizes are padded to one, but {sampler.cannot_pad}")
        return False

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of one sweep; those that are built from the model exist once the sampler has seen an instance.

        Raises:
            ValueError: No blocks were given and the sampler has not seen an instance.
        """
        if self._given_blocks is not None and not any(block.is_automatic for block in self._given_blocks):
            return self._given_blocks
        return self.built.blocks

    @property
    def built(self) -> BuiltSampler:
        """The checked sampler, which exists after `check`, `fit` or `sample`.

        Raises:
            ValueError: The sampler has not seen an instance.
        """
        if self._built is None:
            raise ValueError("this sampler has not seen an instance; call check(example), fit or sample first")
        return self._built

    def describe(self) -> Description:
        """What the sampler is made of: a table of its blocks and a graph of its model.

        Returns:
            A description: `print` shows the table, `figure()` draws the graph.

        Raises:
            ValueError: The sampler has not seen an instance.

        Examples:
            >>> description = sampler.describe()
            >>> description.blocks[0].children[0].name, description.blocks[0].num_parameters
            ('x', 1)
        """
        built = self.built
        assert self._example is not None
        return describe(built, self._example, self.axes)

    def with_blocks(self, blocks: Sequence[Block], initial: "APG | Bridge | None" = None) -> "APG":
        """A sampler of the same model and data with other blocks.

        Args:
            blocks: The blocks of the new sampler.
            initial: What draws its first particles, if its own blocks do not: a sampler or a `Bridge`.

        Returns:
            The new sampler, which has not been checked.

        Examples:
            >>> other = sampler.with_blocks([pg.Block("mu", move=pg.HMC(step_size=0.1))], initial=sampler)
            >>> other.blocks[0].move.num_steps
            10
        """
        return APG(
            self.model,
            data=dict(self.axes),
            blocks=blocks,
            initial=initial,
            exchangeable=self._exchangeable,
            resample=self._resample,
            sizes=self.sizes,
            ess_threshold=self._ess_threshold,
        )

    def like(self, built: BuiltSampler) -> "APG":
        """This sampler with the arrays of a built one."""
        new = self.with_blocks(built.blocks, self.initial)
        new.model, new._built, new._example = built.model, built, self._example
        return new

    def fit(
        self,
        key: KeyLike,
        instances: Any = None,
        *,
        num_steps: int,
        like: Any = None,
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
        """Train the proposals, and the model if it has arrays, by the gradients of Algorithm 2.

        At the initial step and after every block, with samples and weights as constants,

            φ gets −Σ_l w̄_l ∇ log q_φ(z'_b | x, z_-b),        θ gets −Σ_l w̄_l ∇ log p_θ(x, z'),

        summed over blocks and sweeps and averaged over the instances of a batch. Blocks that were built from the model
        get networks (`Neural`) first.

        Without `instances`, the model draws pairs (z, x). Its latents are exact draws from the posterior, so proposals
        learn from them without sampling: φ gets −∇ log q_φ(z | x) and −Σ_b ∇ log q_φ(z_b | x, z_-b). That is faster, and
        free of the bias of self-normalised weights.

        Args:
            key: A random key. With the same key and arguments, training gives the same result.
            instances: A list of dicts of arrays, a dict of arrays stacked over instances, a list of arrays if `data`
                declares one argument, or a simulator `key -> dict of arrays`. By default the model simulates them.
            like: Without `instances`: instances whose sizes, and whose arguments that no site observes, the simulated
                ones share; by default the instance that the sampler was checked against.
            num_steps: The number of gradient steps; a resumed run continues up to this number.
            num_sweeps: Sweeps after the initial proposal; 0 is reweighted wake-sleep. The paper's K is `num_sweeps + 1`.
            num_particles: Particles per instance.
            batch_size: Instances per step.
            optimiser: An Optax transformation; by default `optax.adam(1e-3)`.
            tempering: Starts with a flattened likelihood, for models whose weights collapse before training.
            update_model: When θ gets a gradient: at the initial step and after `"every_block"`, as in the paper, or
                only after the last block of `"every_sweep"`.
            microbatch_size: Instances that a device works on at a time, by default its whole part of the batch. Fewer
                need less memory, and can be faster where instances are large.
            checkpoints: A directory for the checkpoints of this run alone.
            checkpoint_every: Steps between checkpoints.
            resume: Continue the run in `checkpoints`, bit for bit, from its newest readable checkpoint. All arguments
                must be those of that run, except `num_steps`, which may grow, and `microbatch_size`.
            step: Resume from the checkpoint of this step instead.
            configuration: Values to save with the checkpoints, as JSON.
            report_every: Steps between reports to `trackers` and to the history.
            trackers: Functions that are called with the step and a dict of its metrics.
            on_checkpoint: A function that is called with the step and the sampler after every regular checkpoint.
            progress: Whether to show a progress bar on standard error.

        Returns:
            The trained sampler and the history of its metrics. This sampler is unchanged.

        Raises:
            ValueError: An argument is out of range, or differs from that of the resumed run.
            CheckpointError: The directory cannot be read or written, or another process trains in it.
            Interrupted: With `checkpoints`, the first SIGINT or SIGTERM stops the run after it has saved the current
                step; a second one stops it at once, without saving.
            FloatingPointError: No first draw of a batch has a finite log-probability, or gradients have not been finite
                for 100 steps; the message names the site or the block.

        Examples:
            >>> small = dict(num_sweeps=1, num_particles=4, batch_size=2)
            >>> fit = sampler.fit(key, instances, num_steps=2, optimiser=optax.adam(1e-2), progress=False, **small)
            >>> fit.history.steps
            [2]
        """
        key = as_key(key)
        num_steps = whole_number("num_steps", num_steps, 1)
        checkpoint_every = whole_number("checkpoint_every", checkpoint_every, 1)
        report_every = whole_number("report_every", report_every, 1)
        optimiser = optax.adam(1e-3) if optimiser is None else optimiser
        if not isinstance(optimiser, optax.GradientTransformation):
            raise ValueError(f"optimiser must be an Optax one such as optax.adam(1e-3), not {type(optimiser).__name__}")
        if checkpoints is None and (on_checkpoint is not None or resume):
            needing = "resume" if resume else "on_checkpoint"
            raise ValueError(f"{needing} needs a directory for checkpoints")
        step = None if step is None else whole_number("step", step, 0)
        if step is not None and not resume:
            raise ValueError(f"step={step} applies only to a resumed run; add resume=True")
        budget = Budget(
            num_particles=whole_number("num_particles", num_particles),
            num_sweeps=whole_number("num_sweeps", num_sweeps),
            from_model=instances is None,
            batch_size=whole_number("batch_size", batch_size),
            update_model=update_model,
            microbatch_size=None if microbatch_size is None else whole_number("microbatch_size", microbatch_size),
        )
        if instances is not None and like is not None:
            raise ValueError("like= describes simulated instances, but instances were passed; leave one of them out")
        with waiting("checking the sampler") if progress else nullcontext():
            source, listed = self._source(key, instances, budget.batch_size, like)
            sampler = self._learned()
        if not has_arrays(sampler) and sampler is not self.built:
            warnings.warn(
                "every block that is built from the model draws exactly, so there is nothing to train", stacklevel=2
            )
            return Fit(self, History())
        if budget.from_model:
            _check_pairs(sampler)
        with ExitStack() as stack:
            saved = None
            if checkpoints is not None:
                identity = "a simulator" if callable(instances) else _identity(listed)
                run = made_with(key, identity, budget, optimiser, tempering)
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

    def _learned(self) -> BuiltSampler:
        """The sampler to train: blocks that are built from the model have networks."""
        sampler, given = self.built, self._given_blocks
        if given is not None and not any(block.is_automatic for block in given):
            return sampler
        assert self._example is not None
        with TRACING:
            return self._build(self._example, learned=True)

    def _source(self, key: PRNGKey, instances: Any, batch_size: int, like: Any = None) -> tuple[Source, list[Values]]:
        """The source of batches, and its instances, or one instance if they are simulated; all fit the model."""
        if instances is None:
            instances = self._templates(like)
        if callable(instances):

            def simulator(key: PRNGKey) -> Any:
                with TRACING:  # it may be a NumPyro program
                    return instances(key)

            example = jax.eval_shape(simulator, key)
            if not isinstance(example, Mapping):
                raise ValueError(f"the simulator must return a dict of arrays, but it returned {type(example).__name__}")
            source = Simulated(simulator, self.axes)
            # From a whole batch, because that program is needed anyway.
            first = jax.tree.map(lambda leaf: leaf[0], jax.device_get(source.batch(key, 0, batch_size).values))
            listed = as_instances([first], self.axes)
            self.check(listed[0])
            return source, listed
        listed = as_instances(instances, self.axes)
        seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
        return Finite(self._buckets(listed), seed), listed

    def _buckets(self, instances: list[Values]) -> list[Bucket]:
        """Instances that fit the model, padded to few shapes."""
        sampler = self.check(largest(instances, self.axes))
        return into_buckets(instances, self.axes, self.sizes, can_pad=self._can_pad(sampler, instances))

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
        """Draw weighted posterior samples for each instance (Algorithm 2 without its gradients).

        Results depend on the key and on the index of an instance. Batch size, padding and the number of devices change
        them by rounding only.

        Args:
            key: A random key.
            instances: A list of dicts of arrays, a dict of arrays stacked over instances, or a list of arrays if `data`
                declares one argument. Sizes of declared plates may differ between instances.
            num_sweeps: Sweeps after the initial proposal; 0 is importance sampling. The paper's K is `num_sweeps + 1`.
            num_particles: Particles per population.
            num_populations: Independent populations per instance. Two or more give errors of the evidence.
            batch_size: Instances sampled at once.
            progress: Whether to show a progress bar on standard error.

        Returns:
            Weighted samples, evidence and diagnostics of every instance, in the given order.

        Raises:
            ValueError: An argument is out of range, an instance does not fit the model, or instances have several sizes
                and the model or a proposal would change with padding.

        Examples:
            >>> posterior = sampler.sample(key, instances, num_sweeps=2, num_particles=4, num_populations=3)
            >>> posterior[0]["mu"].shape
            (3, 4)
        """
        key = as_key(key)
        num_sweeps = whole_number("num_sweeps", num_sweeps, 0)
        num_particles = whole_number("num_particles", num_particles, 1)
        num_populations = whole_number("num_populations", num_populations, 1)
        batch_size = whole_number("batch_size", batch_size, 1)
        listed = as_instances(instances, self.axes)
        with sampling_progress(len(listed)) if progress else nullcontext() as report:
            buckets = self._buckets(listed)
            runner = Runner(
                sampler=self.built, num_particles=num_particles, num_populations=num_populations, batch_size=batch_size
            )
            parts = [Part(bucket, *runner.run(key, bucket, num_sweeps, report=report)) for bucket in buckets]
        posterior = Posterior(runner, parts)
        posterior.warn()
        return posterior

    def simulate(self, key: KeyLike, num_instances: int, like: Any = None) -> tuple[list[Values], list[Values]]:
        """Draw instances, and the latents behind them, from the model.

        Args:
            key: A random key.
            num_instances: The number of instances.
            like: Instances whose sizes, and whose arguments that no site observes, are used in turn; by default the
                instance that the sampler was checked against.

        Returns:
            The instances, and the values of the latent sites of each, by name.

        Raises:
            ValueError: The sampler has not seen an instance, or the model cannot draw the arrays that it observes.

        Examples:
            >>> drawn, latents = sampler.simulate(key, 3)
            >>> len(drawn), drawn[0]["x"].shape, latents[0]["mu"].shape
            (3, (4,), ())
        """
        key, num_instances = as_key(key), whole_number("num_instances", num_instances, 1)
        templates = self._templates(like)
        model = self.built.model
        drawn = jit(jax.vmap(lambda key, template: simulate(model, template, key), in_axes=(0, None)))
        rows = [range(start, num_instances, len(templates)) for start in range(len(templates))]
        pairs: list[Any] = [None] * num_instances
        for template, chosen in zip(templates, rows, strict=True):
            if chosen:
                keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(np.asarray(chosen))
                found = jax.device_get(drawn(keys, template))
                for row, place in enumerate(chosen):
                    pairs[place] = jax.tree.map(lambda leaf: leaf[row], found)  # noqa: B023
        return [instance for instance, _ in pairs], [latents for _, latents in pairs]

    def _templates(self, like: Any) -> list[Values]:
        """Instances from which simulated ones take their sizes and the arguments that no site observes."""
        if like is None:
            if self._example is None:
                raise ValueError("this sampler has not seen an instance; call check(example) first, or pass like=")
            templates = [self._example]
        else:
            templates = as_instances(like, self.axes)
            self.check(largest(templates, self.axes))
        for template in templates:
            simulates(self.built.model, template)
        return templates

    def save(self, directory: str | Path, configuration: Mapping[str, Any] | None = None) -> None:
        """Write the sampler's arrays, without a training state, as the newest checkpoint of a directory.

        Args:
            directory: The directory, which is created if it does not exist.
            configuration: Values to save with the arrays, as JSON.

        Raises:
            CheckpointError: The directory cannot be written, another process writes to it, or nothing is to be saved.

        Examples:
            >>> sampler.save("run")
            >>> sampler.load("run").blocks[0].proposal.log_scale
            Array(0., dtype=float32)
        """
        if not has_arrays(self.built):
            raise CheckpointError("this sampler has no trained arrays to save; build it from its model instead")
        with closing(Checkpoints(directory, configuration)) as checkpoints:
            step = 0 if checkpoints.latest is None else checkpoints.latest + 1
            checkpoints.save(step, {SAMPLER: eqx.filter(self.built, eqx.is_inexact_array)})

    def load(self, directory: str | Path, step: int | None = None) -> "APG":
        """This sampler with the arrays of a checkpoint that `fit` or `save` wrote.

        Args:
            directory: The directory of the checkpoints.
            step: The step to read. By default it is the newest, or the one before with a warning if that is damaged.

        Returns:
            A sampler with the same model and blocks as this one, which must have been checked against an example.

        Raises:
            CheckpointError: There is no checkpoint, it is damaged, or it belongs to a different sampler.

        Examples:
            >>> sampler.save("saved")
            >>> restored = sampler.load("saved")
        """
        arrays, static = eqx.partition(self._learned(), eqx.is_inexact_array)
        found = read(directory, step)
        restored = from_names(found.sampler, {SAMPLER: arrays}, str(found.path), widen=True)[SAMPLER]
        return self.like(eqx.combine(restored, static))


def _check_pairs(sampler: BuiltSampler) -> None:
    """Raise if the sampler cannot learn from pairs that its model draws."""
    if has_arrays(sampler.model):
        raise ValueError(
            "the model has arrays to train, which instances simulated from it cannot teach; pass instances to fit"
        )
    if stepwise := [block.name for block in sampler.blocks if not block.splits]:
        raise ValueError(f"block '{stepwise[0]}' cannot learn from instances simulated by the model; pass a simulator")
    if not has_arrays(sampler.blocks):
        raise ValueError("no block has anything to train; leave out proposal= or pass proposals with networks")


def _identity(instances: Sequence[Values]) -> str:
    """A text that differs between sets of instances."""
    return f"{len(instances)} with SHA-256 {digest_of(jax.device_get(to_names(instances)))[:16]}"


@dataclass(frozen=True)
class Fit:
    """The result of `APG.fit`: a trained sampler and the history of its training.

    Attributes:
        sampler: The trained sampler.
        history: The metrics of the reported steps: `history.steps`, and an array over these steps for each name, such as
            `history["log_joint"]`, or `history["loss"]` with axes (step, block).

    Examples:
        >>> small = dict(num_sweeps=1, num_particles=4, batch_size=2)
        >>> fit = sampler.fit(key, instances, num_steps=2, report_every=1, progress=False, **small)
        >>> fit.history["log_joint"].shape, fit.history["loss"].shape
        ((2,), (2, 1))
        >>> posterior = fit.sampler.sample(key, instances, num_sweeps=2, num_particles=4)
    """

    sampler: APG
    history: History
