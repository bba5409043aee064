"""`popgibbs demo`."""

from pathlib import Path
from typing import Annotated

import typer

from popgibbs.cli.app import app, out, stoppable
from popgibbs.cli.options import Seed
from popgibbs.paper import demo as demonstration


@app.command()
@stoppable("the demonstration was not finished")
def demo(
    out_dir: Annotated[Path, typer.Option("--out", help="The directory for figures.")] = Path("demo"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = demonstration.NUM_STEPS,
    seed: Seed = 0,
) -> None:
    """Train a mixture sampler for about two minutes, then sample posteriors of new, larger instances."""
    demonstration.run(out_dir, num_steps=steps, seed=seed, console=out)
