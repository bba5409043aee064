"""`popgibbs export`."""

from pathlib import Path
from typing import Annotated

import typer

from popgibbs.cli.app import Command, app, check_directory, out
from popgibbs.cli.options import Step


@app.command(cls=Command)
def export(
    run: Annotated[Path, typer.Argument(help="A run's directory.")],
    out_dir: Annotated[Path, typer.Option("--out", help="A new directory for the sampler.")],
    step: Step = None,
) -> None:
    """Write the sampler of a run without its training state."""
    from popgibbs.paper import runs
    from popgibbs.training import export as export_run

    check_directory(out_dir)
    export_run(run, out_dir, runs.describe(run, step)["step"])
    out.print(f"{run} → {out_dir}; next: popgibbs sample {out_dir} DATA.npz --out posterior.nc", soft_wrap=True)
