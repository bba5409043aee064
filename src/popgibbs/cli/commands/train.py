"""`popgibbs train`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from popgibbs.cli.app import Command, app, check_directory, out, stoppable
from popgibbs.cli.options import Name
from popgibbs.paper import registry

if TYPE_CHECKING:
    from popgibbs.apg import APG
    from popgibbs.paper.experiment import Experiment


@app.command(cls=Command)
def train(
    name: Name,
    out_dir: Annotated[Path, typer.Option("--out", help="The run's directory, where checkpoints are written.")],
    variant: Annotated[str | None, typer.Option(help="A variant of the experiment's sampler.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps; by default the experiment's own.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Random seed, by default 0; equal seeds give equal results.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the directory, bit for bit.")] = False,
    step: Annotated[
        int | None,
        typer.Option("--step", min=0, help="With --resume: the checkpoint to continue from; later ones are deleted."),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between checkpoints; by default the experiment's own.")
    ] = None,
) -> None:
    """Train a sampler. Ctrl-C saves before it stops; --resume continues from there."""
    import jax

    from popgibbs.paper import runs
    from popgibbs.training import check_resumable, holds_run, refuse_changes

    experiment = registry.experiment(name)
    chosen = variant or experiment.default
    experiment.check_variant(chosen)
    training = experiment.variants[chosen].training
    training = replace(training, num_steps=steps or training.num_steps)
    configuration = runs.configuration(experiment, chosen, training, seed or 0)
    if resume:
        about = runs.describe_of(experiment, out_dir, step)
        check_resumable(out_dir, about)
        configuration, step = about["configuration"], about["step"]
        given = {"experiment": name, "variant": variant, "num_steps": steps, "seed": seed}
        refuse_changes(out_dir, configuration, {key: value for key, value in given.items() if value is not None})
        training = experiment.variants[configuration["variant"]].training
    elif step is not None:
        raise ValueError(f"--step {step} selects the checkpoint to resume from; add --resume")
    elif holds_run(out_dir):
        raise ValueError(f"{out_dir} already holds a run; continue it with --resume or choose another directory")
    check_directory(out_dir)
    with stoppable(lambda: "continue with --resume" if holds_run(out_dir) else "nothing was saved yet"):
        fit = experiment.fit(
            jax.random.key(configuration["seed"]),
            configuration["variant"],
            replace(training, num_steps=configuration["num_steps"], size=configuration["size"]),
            checkpoints=out_dir,
            checkpoint_every=checkpoint_every or training.checkpoint_every,
            resume=resume,
            step=step,
            configuration=configuration,
            on_checkpoint=_snapshots(experiment, configuration, out_dir) if training.snapshots else None,
        )
    if fit.history.steps:
        out.print(f"trained {fit.history.steps[-1]} steps; next: popgibbs evaluate {name} --run {out_dir}")
    else:
        out.print(f"the run in {out_dir} was already complete")


def _snapshots(experiment: "Experiment", configuration: dict[str, Any], directory: Path) -> "Callable[[int, APG], None]":
    """A function that draws held-out instances of the training size at every checkpoint."""
    import jax

    from popgibbs.paper.plots.pictures import NUM_INSTANCES, draw_samples, save_samples
    from popgibbs.paper.tables import held_out

    key = jax.random.key(configuration["seed"])
    one_shot = experiment.variants[configuration["variant"]].one_shot
    shown, _ = held_out(experiment, configuration["seed"], NUM_INSTANCES, configuration["size"])

    def snapshot(step: int, sampler: "APG") -> None:
        in_sweeps, alone = (None, sampler) if one_shot else (sampler, None)
        drawn = draw_samples(experiment, in_sweeps, key, shown, alone)
        save_samples(drawn, directory / "pictures" / f"{step:07}.png")

    return snapshot
