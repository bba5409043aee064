"""`popgibbs show`."""

from popgibbs.cli.app import app, out
from popgibbs.cli.options import RunOrName, Step, directory_of
from popgibbs.paper import registry, runs
from popgibbs.paper.reports import run_table


@app.command()
def show(run: RunOrName, step: Step = None) -> None:
    """Show a run's configuration, step, versions and parameters."""
    about = runs.describe(directory_of(run), step)
    experiment = registry.experiment(about["configuration"]["experiment"])
    sampler, about = runs.load(experiment, directory_of(run), about["step"])
    out.print(run_table(about, sampler))
