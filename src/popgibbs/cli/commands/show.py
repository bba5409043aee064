"""`popgibbs show`."""

from popgibbs.cli.app import Command, app, out
from popgibbs.cli.options import RunOrName, Step, directory_of


@app.command(cls=Command)
def show(run: RunOrName, step: Step = None) -> None:
    """Show a run's configuration, step, versions and parameters."""
    from popgibbs.paper import runs
    from popgibbs.paper.reports import run_table

    out.print(run_table(runs.describe(directory_of(run), step)))
