"""The command line."""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console

from popgibbs._files import whole
from popgibbs.apg import APG
from popgibbs.data import parse_axes, read_instances
from popgibbs.paper import demo as demonstration
from popgibbs.paper import reproduction, runs
from popgibbs.paper.bmnist import BMNIST
from popgibbs.paper.bmnist import study as bmnist
from popgibbs.paper.dmm import DMM
from popgibbs.paper.dmm import study as dmm
from popgibbs.paper.experiment import Experiment
from popgibbs.paper.gmm import GMM
from popgibbs.paper.gmm import study as gmm
from popgibbs.paper.plots.pictures import NUM_INSTANCES, draw_samples, save_samples
from popgibbs.paper.reports import evaluation_table, run_table
from popgibbs.paper.tables import evaluate as run_evaluation
from popgibbs.paper.tables import held_out
from popgibbs.training import CheckpointError, Interrupted, end_at_once, holds_run, refuse_changes, terminable
from popgibbs.training import export as export_run

EXPERIMENTS = {experiment.name: experiment for experiment in (GMM, DMM, BMNIST)}
STUDIES = {study.experiment.name: study for study in (gmm.STUDY, dmm.STUDY, bmnist.STUDY)}

app = typer.Typer(
    help="Amortized population Gibbs samplers: train once, then sample posteriors of new instances.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# No markup: names of files and lists in messages contain brackets.
out = Console(markup=False)
err = Console(stderr=True, markup=False)

Seed = Annotated[int, typer.Option(min=0, help="Every random number follows from it.")]
Sweeps = Annotated[int, typer.Option(min=0, help="Gibbs sweeps after the initial proposal; the paper's K is one more.")]
Particles = Annotated[int, typer.Option(min=1, help="Particles of a population.")]
Populations = Annotated[int, typer.Option(min=1, help="Independent populations of an instance.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Step = Annotated[
    int | None, typer.Option("--step", min=0, help="The checkpoint to read; by default the newest that can be read.")
]
Name = Annotated[str, typer.Argument(help=f"The experiment: {', '.join(EXPERIMENTS)}.")]


def _experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment '{name}'; there are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def _variant(experiment: Experiment, variant: str | None) -> str:
    chosen = variant or experiment.default
    if chosen not in experiment.variants:
        raise ValueError(f"'{experiment.name}' has no variant '{chosen}'; it has {', '.join(experiment.variants)}")
    return chosen


def _directory(name: str) -> Path:
    """A run's directory; the name of an experiment stands for its shipped sampler."""
    if name in EXPERIMENTS and not Path(name).exists():
        return EXPERIMENTS[name].shipped / EXPERIMENTS[name].default
    return Path(name)


def _load(run: str, step: int | None, **size: int | None) -> tuple[Experiment, APG, dict[str, Any]]:
    """The experiment of a run, its sampler, and what is written about it."""
    about = runs.describe(_directory(run), step)
    experiment = _experiment(about["configuration"]["experiment"])
    sampler, about = runs.load(experiment, _directory(run), about["step"], **size)
    return experiment, sampler, about


@contextmanager
def _stoppable(way_on: str | Callable[[], str]) -> Iterator[None]:
    """Ctrl-C and SIGTERM end a command with a sentence that says how far it came, or what to do next."""
    try:
        with terminable():
            yield
    except KeyboardInterrupt as stop:  # of which `Interrupted` is one, from a run that may have been saved
        err.print(f"{str(stop) or 'stopped'}; {way_on if isinstance(way_on, str) else way_on()}")
        end_at_once(stop.exit_code if isinstance(stop, Interrupted) else 130)


def _check_output(path: Path, *, makes_parents: bool = False) -> None:
    """Refuse a file that could not be written, before anything is computed."""
    if path.is_dir():
        raise ValueError(f"{path} is a directory; name a file in it")
    parent = path.absolute().parent
    while makes_parents and not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise ValueError(f"there is no directory {parent}")
    if not os.access(parent, os.W_OK):
        raise ValueError(f"cannot write to the directory {parent}")


@app.command()
@_stoppable("the demonstration was not finished")
def demo(
    out_dir: Annotated[Path, typer.Option("--out", help="Where figures go.")] = Path("demo"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = demonstration.NUM_STEPS,
    seed: Seed = 0,
) -> None:
    """Train a mixture sampler for about two minutes, then sample posteriors of new, larger instances."""
    demonstration.run(out_dir, num_steps=steps, seed=seed, console=out)


@app.command()
def train(
    name: Name,
    out_dir: Annotated[Path, typer.Option("--out", help="The run's directory, for checkpoints.")],
    variant: Annotated[str | None, typer.Option(help="A variant of the experiment's sampler.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps; by default the experiment's own.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Every random number follows from it; by default 0.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the directory, bit for bit.")] = False,
    step: Annotated[
        int | None,
        typer.Option("--step", min=0, help="With --resume: the checkpoint to go on from; later ones are deleted."),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between checkpoints; by default the experiment's own.")
    ] = None,
) -> None:
    """Train a sampler. Ctrl-C saves before it stops; --resume goes on from there."""
    experiment = _experiment(name)
    chosen = _variant(experiment, variant)
    training = experiment.variants[chosen].training
    training = replace(training, num_steps=steps or training.num_steps)
    configuration = runs.configuration(experiment, chosen, training, seed or 0)
    if resume:
        about = runs.describe(out_dir, step)
        configuration, step = about["configuration"], about["step"]
        given = {"experiment": name, "variant": variant, "num_steps": steps, "seed": seed}
        refuse_changes(out_dir, configuration, {key: value for key, value in given.items() if value is not None})
        training = experiment.variants[configuration["variant"]].training
    elif step is not None:
        raise ValueError(f"--step {step} is for a run that is resumed; add --resume")
    with _stoppable(lambda: "go on with --resume" if holds_run(out_dir) else "nothing was saved yet"):
        fit = experiment.fit(
            jax.random.key(configuration["seed"]),
            configuration["variant"],
            replace(training, num_steps=configuration["num_steps"], size=configuration["size"]),
            checkpoints=out_dir,
            checkpoint_every=checkpoint_every or training.checkpoint_every,
            resume=resume,
            step=step,
            configuration=configuration,
            at_checkpoints=_snapshots(experiment, configuration, out_dir) if training.snapshots else None,
        )
    if fit.history.steps:
        out.print(f"trained {fit.history.steps[-1]} steps; next: popgibbs evaluate {name} --run {out_dir}")
    else:
        out.print(f"the run in {out_dir} was already complete")


def _snapshots(experiment: Experiment, configuration: dict[str, Any], directory: Path) -> Callable[[int, APG], None]:
    """What writes a picture of held-out instances, of the size of those trained on, at every checkpoint."""
    key = jax.random.key(configuration["seed"])
    one_shot = experiment.variants[configuration["variant"]].one_shot
    shown, _ = held_out(experiment, configuration["seed"], NUM_INSTANCES, configuration["size"])

    def snapshot(step: int, sampler: APG) -> None:
        in_sweeps, alone = (None, sampler) if one_shot else (sampler, None)
        drawn = draw_samples(experiment, in_sweeps, key, shown, alone)
        save_samples(drawn, directory / "pictures" / f"{step:07}.png")

    return snapshot


@app.command()
@_stoppable("the evaluation was not finished")
def evaluate(
    name: Name,
    run: Annotated[Path | None, typer.Option(help="A run's directory; by default the shipped sampler.")] = None,
    step: Step = None,
    instances: Annotated[
        int | None,
        typer.Option("--instances", "--videos", min=2, help="Held-out instances; by default the experiment's own."),
    ] = None,
    points: Annotated[int | None, typer.Option(min=1, help="Points of an instance; by default the paper's.")] = None,
    digits: Annotated[int | None, typer.Option(min=1, help="Digits of a video; by default the paper's.")] = None,
    frames: Annotated[int | None, typer.Option(min=1, help="Frames of a video; by default the paper's.")] = None,
    num_sweeps: Sweeps = 19,
    num_particles: Particles = 10,
    num_populations: Annotated[
        int | None, typer.Option(min=1, help="Independent populations of an instance; by default the experiment's own.")
    ] = None,
    seed: Seed = 7,
    figure: Annotated[
        Path | None, typer.Option(help="A PNG file for a picture of samples over sweeps; a GIF shows videos.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Sample held-out instances and compare with the latents that generated them."""
    experiment = _experiment(name)
    if figure is not None:
        _check_output(figure, makes_parents=True)
    size = experiment.sized(experiment.size, points=points, digits=digits, frames=frames)
    directory = run or experiment.shipped / experiment.default
    sampler, about = runs.load(experiment, directory, step, **size)
    chosen = about["configuration"]["variant"]
    samplers = {chosen: sampler}
    for other in experiment.variants:
        if other != chosen and (experiment.shipped / other).is_dir():
            samplers[other], _ = runs.load(experiment, experiment.shipped / other, **size)
    results = {}
    for variant, sampler in samplers.items():
        results[variant], _ = run_evaluation(
            experiment,
            sampler,
            num_instances=instances or experiment.num_instances,
            size=size,
            num_populations=num_populations or experiment.num_populations,
            seed=seed,
            **experiment.variants[variant].budget(num_sweeps, num_particles),
        )
    if as_json:
        main, *others = results
        typer.echo(json.dumps({"variant": main, **results[main], **{other: results[other] for other in others}}))
    else:
        out.print(evaluation_table(experiment, results))
    if figure is not None:
        one_shot = next((apg for variant, apg in samplers.items() if experiment.variants[variant].one_shot), None)
        in_sweeps = None if experiment.variants[chosen].one_shot else samplers[chosen]
        shown, _ = held_out(experiment, seed, NUM_INSTANCES, size)
        save_samples(draw_samples(experiment, in_sweeps, jax.random.key(seed), shown, one_shot), figure)


@app.command()
@_stoppable("nothing was written")
def sample(
    run: Annotated[str, typer.Argument(help="A run's directory, or an experiment's name for its shipped sampler.")],
    data: Annotated[Path, typer.Argument(help="A .npz file: the model's arguments by name; ragged with `NAME_lengths`.")],
    out_file: Annotated[Path, typer.Option("--out", help="Where the posterior goes, as netCDF for ArviZ.")],
    num_sweeps: Sweeps = 19,
    num_particles: Particles = 10,
    num_populations: Populations = 4,
    digits: Annotated[int | None, typer.Option(min=1, help="Digits of a video; by default as in training.")] = None,
    step: Step = None,
    seed: Seed = 0,
) -> None:
    """Sample the posteriors of the instances in a file."""
    # Files are checked first, because to build a sampler takes a while.
    _check_output(out_file)
    about = runs.describe(_directory(run), step)
    experiment = _experiment(about["configuration"]["experiment"])
    instances = read_instances(data, parse_axes(experiment.data))
    for i, instance in enumerate(instances):
        experiment.check(instance, f"{data}: instance {i}")
    sampler, _ = runs.load(experiment, _directory(run), about["step"], digits=digits)
    variant = experiment.variants[about["configuration"]["variant"]]
    budget = variant.budget(num_sweeps, num_particles)
    posterior = sampler.sample(
        jax.random.key(seed),
        instances,
        **budget,
        num_populations=num_populations,
        batch_size=experiment.at_once(budget["num_particles"] * num_populations),
        progress=True,
    )
    with whole(out_file) as partial:
        posterior.to_arviz().to_netcdf(str(partial))
    out.print(f"{posterior!r} → {out_file}", soft_wrap=True)
    if flagged := posterior.degenerate.nonzero()[0].tolist():
        err.print(f"weights failed on the instances {flagged}: do not trust them")
    if weak := posterior.weak_blocks:
        err.print(f"few particles are effective in the blocks {', '.join(weak)}: use more particles or sweeps")


@app.command()
def reproduce(
    name: Name,
    preset: Annotated[
        str, typer.Option(help="How much is spent: quick, or the paper's sizes, for hours or days.")
    ] = "quick",
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Where tables and figures go; by default results/NAME-PRESET.")
    ] = None,
    seed: Seed = 7,
) -> None:
    """Write the paper's tables and figures, with its numbers beside ours. Stopped, the same command goes on."""
    experiment = _experiment(name)
    directory = out_dir or Path("results") / f"{name}-{preset}"
    with _stoppable("the same command goes on from there"):
        reproduction.reproduce(STUDIES[experiment.name], preset, directory, seed=seed, console=out)


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run's directory, or an experiment's name.")], step: Step = None
) -> None:
    """Show what a run is: configuration, step, versions, parameters."""
    _, sampler, about = _load(run, step)
    out.print(run_table(about, sampler))


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run's directory.")],
    out_dir: Annotated[Path, typer.Option("--out", help="A new directory for the sampler.")],
    step: Step = None,
) -> None:
    """Write the sampler of a run by itself, without what is needed to go on training."""
    export_run(run, out_dir, runs.describe(run, step)["step"])
    out.print(f"{run} → {out_dir}; next: popgibbs sample {out_dir} DATA.npz --out posterior.nc", soft_wrap=True)


def _use_all_cores() -> None:
    """Show one host device a core, because XLA on CPU runs small operations on one core each."""
    if "JAX_NUM_CPU_DEVICES" in os.environ:
        return
    with suppress(RuntimeError):  # JAX has started already, in a process that is not ours to set up
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)


def _show_warning(message: Warning | str, *_: Any) -> None:
    err.print(f"popgibbs: {message}", style="yellow", highlight=False, soft_wrap=True)


def main() -> None:
    """Run a command; what users can put right is told in one sentence, and so are warnings."""
    _use_all_cores()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app()
    except (ValueError, CheckpointError, FloatingPointError) as error:
        err.print(f"popgibbs: {error}", style="red", highlight=False, soft_wrap=True)
        sys.exit(1)
    except OSError as error:
        told = f"{error.filename}: {error.strerror}" if error.filename else error
        err.print(f"popgibbs: {told}", style="red", highlight=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
