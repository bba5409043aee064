"""`popgibbs demo`."""

from pathlib import Path
from typing import Annotated

import typer

from popgibbs.cli.app import Command, app, check_directory, out, stoppable
from popgibbs.cli.options import Seed


@app.command(cls=Command)
@stoppable("the demonstration was not finished")
def demo(
    out_dir: Annotated[Path, typer.Option("--out", help="The directory for figures.")] = Path("demo"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 5000,
    seed: Seed = 0,
) -> None:
    """Train a mixture sampler for about two minutes, then sample posteriors of new, larger instances."""
    from popgibbs.paper import demo as demonstration

    check_directory(out_dir)
    demonstration.run(out_dir, num_steps=steps, seed=seed, console=out)
