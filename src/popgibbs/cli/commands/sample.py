"""`popgibbs sample`."""

from pathlib import Path
from typing import Annotated

import typer

from popgibbs.cli.app import app, check_output, err, out, stoppable
from popgibbs.cli.options import (
    Particles,
    Populations,
    RunOrName,
    Seed,
    SizedCommand,
    Sizes,
    Step,
    Sweeps,
    directory_of,
    parse_sizes,
)
from popgibbs.paper import registry


@app.command(cls=SizedCommand)
@stoppable("nothing was written")
def sample(
    run: RunOrName,
    data: Annotated[
        Path, typer.Argument(help="A .npz file with the model's arguments by name; ragged ones need `NAME_lengths`.")
    ],
    out_file: Annotated[Path, typer.Option("--out", help="Write the posterior to this netCDF file, for ArviZ.")],
    size: Sizes = None,
    num_sweeps: Sweeps = 19,
    num_particles: Particles = 10,
    num_populations: Populations = 4,
    step: Step = None,
    seed: Seed = 0,
) -> None:
    """Sample the posteriors of the instances in a file.

    A size that the data do not determine, such as the number of digits in a video, is by default that of the run's
    training instances.
    """
    import jax

    from popgibbs._files import whole
    from popgibbs.data import parse_axes, read_instances
    from popgibbs.paper import runs

    # Files are checked first, because building a sampler takes a while.
    check_output(out_file)
    about = runs.describe(directory_of(run), step)
    experiment = registry.experiment(about["configuration"]["experiment"])
    given = parse_sizes(size, experiment)
    instances = read_instances(data, parse_axes(experiment.data))
    for i, instance in enumerate(instances):
        experiment.check(instance, f"{data}: instance {i}")
    sampler, _ = runs.load(experiment, directory_of(run), about["step"], **given)
    variant = experiment.variants[about["configuration"]["variant"]]
    budget = variant.budget(num_sweeps, num_particles)
    posterior = sampler.sample(
        jax.random.key(seed),
        instances,
        **budget,
        num_populations=num_populations,
        batch_size=experiment.instances_at_once(budget["num_particles"] * num_populations),
        progress=True,
    )
    with whole(out_file) as partial:
        posterior.to_arviz().to_netcdf(str(partial))
    out.print(f"{posterior!r} → {out_file}", soft_wrap=True)
    if flagged := posterior.degenerate.nonzero()[0].tolist():
        err.print(f"all particles lost their weight on the instances {flagged}; do not trust these posteriors")
    if weak := posterior.weak_blocks:
        err.print(f"few particles are effective in the blocks {', '.join(weak)}: use more particles or sweeps")
