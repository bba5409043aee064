"""`popgibbs reproduce`."""

from pathlib import Path
from typing import Annotated

import typer

from popgibbs.cli.app import Command, app, check_directory, out, stoppable
from popgibbs.cli.options import Name, Seed
from popgibbs.paper import registry


@app.command(cls=Command)
def reproduce(
    name: Name,
    preset: Annotated[
        str, typer.Option(help="quick, or paper for the paper's sizes, which takes hours or days.")
    ] = "quick",
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="The directory for tables and figures; by default results/NAME-PRESET.")
    ] = None,
    seed: Seed = 7,
) -> None:
    """Write the paper's tables and figures, with its numbers next to ours. If stopped, run it again to continue."""
    from popgibbs.paper import reproduction

    study = registry.study(name)
    directory = out_dir or Path("results") / f"{name}-{preset}"
    check_directory(directory)
    with stoppable("run the same command again to continue"):
        reproduction.reproduce(study, preset, directory, seed=seed, console=out)
