"""`popgibbs evaluate`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from popgibbs.cli.app import app, check_output, out, stoppable
from popgibbs.cli.options import Json, Name, Particles, Seed, SizedCommand, Sizes, Step, Sweeps, parse_sizes
from popgibbs.paper import registry

if TYPE_CHECKING:
    from popgibbs.paper.experiment import Experiment


@app.command(cls=SizedCommand)
@stoppable("the evaluation was not finished")
def evaluate(
    name: Name,
    run: Annotated[Path | None, typer.Option(help="A run's directory; by default the shipped sampler.")] = None,
    step: Step = None,
    beside: Annotated[
        str | None, typer.Option(metavar="VARIANTS", help="Shipped variants to evaluate as well, such as rws,paper.")
    ] = None,
    instances: Annotated[
        int | None, typer.Option(min=2, help="Held-out instances; by default the experiment's own.")
    ] = None,
    size: Sizes = None,
    num_sweeps: Sweeps = 19,
    num_particles: Particles = 10,
    num_populations: Annotated[
        int | None, typer.Option(min=1, help="Independent populations per instance; by default the experiment's own.")
    ] = None,
    seed: Seed = 7,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="Write a picture of samples over sweeps to this PNG file, or GIF for videos; --beside rws adds RWS."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Sample held-out instances, by default of the paper's size, and compare them with the generating latents."""
    # What is given is checked first, because building a sampler takes a while.
    experiment = registry.experiment(name)
    if figure is not None:
        _check_figure(experiment, figure)
    given = parse_sizes(size, experiment, experiment.instances_are)
    num_instances = given.pop(experiment.instances_are, None) or instances or experiment.num_instances
    if num_instances < 2:
        raise ValueError(f"--{experiment.instances_are} must be at least 2, because results have standard errors")
    sized = experiment.sized(experiment.size, **given)

    import jax

    from popgibbs.paper import runs
    from popgibbs.paper.plots.pictures import NUM_INSTANCES, draw_samples, save_samples
    from popgibbs.paper.reports import evaluation_table
    from popgibbs.paper.tables import evaluate as run_evaluation
    from popgibbs.paper.tables import held_out

    directory = run or experiment.shipped / experiment.default
    about = runs.describe_of(experiment, directory, step)
    chosen = about["configuration"]["variant"]
    others = _shipped(experiment, beside, chosen)
    samplers = {chosen: runs.load(experiment, directory, about["step"], **sized)[0]}
    for other in others:
        samplers[other], _ = runs.load(experiment, experiment.shipped / other, **sized)
    results = {}
    for variant, sampler in samplers.items():
        results[variant], _ = run_evaluation(
            experiment,
            sampler,
            num_instances=num_instances,
            size=sized,
            num_populations=num_populations or experiment.num_populations,
            seed=seed,
            **experiment.variants[variant].budget(num_sweeps, num_particles),
        )
    if as_json:
        typer.echo(json.dumps({"variant": chosen, **results[chosen], **{other: results[other] for other in others}}))
    else:
        out.print(evaluation_table(experiment, results))
    if figure is not None:
        one_shot = next((apg for variant, apg in samplers.items() if experiment.variants[variant].one_shot), None)
        in_sweeps = None if experiment.variants[chosen].one_shot else samplers[chosen]
        shown, _ = held_out(experiment, seed, NUM_INSTANCES, sized)
        save_samples(draw_samples(experiment, in_sweeps, jax.random.key(seed), shown, one_shot), figure)


def _shipped(experiment: "Experiment", beside: str | None, chosen: str) -> list[str]:
    """The variants of `--beside`, each once."""
    others = list(dict.fromkeys(name.strip() for name in beside.split(","))) if beside is not None else []
    for other in others:
        experiment.check_variant(other)
        if other == chosen:
            raise ValueError(f"--beside {other}: this is the variant that is evaluated anyway")
        if not (experiment.shipped / other).is_dir():
            raise ValueError(f"--beside {other}: this variant of '{experiment.name}' does not come with the package")
    return others


def _check_figure(experiment: "Experiment", figure: Path) -> None:
    from matplotlib.backend_bases import FigureCanvasBase

    check_output(figure, makes_parents=True)
    formats = {f".{name}" for name in FigureCanvasBase.get_supported_filetypes()}
    if figure.suffix.lower() not in formats.union(registry.study(experiment.name).suffixes):
        raise ValueError(f"cannot draw to {figure}: name a file that ends in .png")
