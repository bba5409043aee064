"""`popgibbs evaluate`."""

import json
from pathlib import Path
from typing import Annotated

import jax
import typer

from popgibbs.cli.app import app, check_output, out, stoppable
from popgibbs.cli.options import Json, Name, Particles, Seed, SizedCommand, Sizes, Step, Sweeps, parse_sizes
from popgibbs.paper import registry, runs
from popgibbs.paper.plots.pictures import NUM_INSTANCES, draw_samples, save_samples
from popgibbs.paper.reports import evaluation_table
from popgibbs.paper.tables import evaluate as run_evaluation
from popgibbs.paper.tables import held_out


@app.command(cls=SizedCommand)
@stoppable("the evaluation was not finished")
def evaluate(
    name: Name,
    run: Annotated[Path | None, typer.Option(help="A run's directory; by default the shipped sampler.")] = None,
    step: Step = None,
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
        Path | None, typer.Option(help="Write a picture of samples over sweeps to this PNG file, or GIF for videos.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Sample held-out instances, by default of the paper's size, and compare them with the generating latents."""
    experiment = registry.experiment(name)
    if figure is not None:
        check_output(figure, makes_parents=True)
    given = parse_sizes(size, experiment, experiment.instances_are)
    num_instances = given.pop(experiment.instances_are, None) or instances or experiment.num_instances
    if num_instances < 2:
        raise ValueError(f"--{experiment.instances_are} must be at least 2, because results have standard errors")
    sized = experiment.sized(experiment.size, **given)
    directory = run or experiment.shipped / experiment.default
    sampler, about = runs.load(experiment, directory, step, **sized)
    chosen = about["configuration"]["variant"]
    samplers = {chosen: sampler}
    for other in experiment.variants:
        if other != chosen and (experiment.shipped / other).is_dir():
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
        main, *others = results
        typer.echo(json.dumps({"variant": main, **results[main], **{other: results[other] for other in others}}))
    else:
        out.print(evaluation_table(experiment, results))
    if figure is not None:
        one_shot = next((apg for variant, apg in samplers.items() if experiment.variants[variant].one_shot), None)
        in_sweeps = None if experiment.variants[chosen].one_shot else samplers[chosen]
        shown, _ = held_out(experiment, seed, NUM_INSTANCES, sized)
        save_samples(draw_samples(experiment, in_sweeps, jax.random.key(seed), shown, one_shot), figure)
