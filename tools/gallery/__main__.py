"""`python -m tools.gallery`: measure what has not been measured, and write the table."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tools.gallery import paper, published, report
from tools.gallery.entries import ENTRIES
from tools.gallery.stages import STAGES, Settings, run


def main(
    only: Annotated[list[str] | None, typer.Option(help="Examples or models of the paper; by default all.")] = None,
    stage: Annotated[list[str] | None, typer.Option(help="training-free or trained; by default both.")] = None,
    instances: Annotated[int, typer.Option(help="Simulated instances for coverage.")] = 500,
    compared: Annotated[int, typer.Option(help="Instances that are compared with references.")] = 100,
    num_sweeps: Annotated[int, typer.Option(help="Sweeps after the first draw.")] = 19,
    num_steps: Annotated[int, typer.Option(help="Training steps.")] = 2_000,
    posteriordb: Annotated[Path | None, typer.Option(help="references.json of the published posteriors.")] = None,
    published_populations: Annotated[int, typer.Option(help="Populations for the published posteriors.")] = 400,
    out: Annotated[Path, typer.Option(help="Where measurements are kept.")] = Path("runs/gallery"),
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/results/gallery.md"),
) -> None:
    """Measure the examples training-free and trained; measurements that exist are not made again."""
    wanted, stages = only or [*ENTRIES, *paper.SETTINGS], stage or list(STAGES)
    if unknown := sorted({*wanted} - {*ENTRIES, *paper.SETTINGS}) + sorted({*stages} - {*STAGES}):
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join((*ENTRIES, *paper.SETTINGS, *STAGES))}")
    settings = Settings(
        instances=instances, compared=min(compared, instances), num_sweeps=num_sweeps, num_steps=num_steps
    )
    folder = out / settings.folder
    folder.mkdir(parents=True, exist_ok=True)
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns) as progress:
        measured = [(name, one) for name in ENTRIES if name in wanted for one in stages]
        settings_of_paper = {name: setting for name, setting in paper.SETTINGS.items() if name in wanted}
        references = published.read(posteriordb) if posteriordb else {}
        bar = progress.add_task("", total=len(measured) + len(settings_of_paper) + len(references))
        for name, one in measured:
            run(
                ENTRIES[name],
                one,
                settings,
                folder,
                lambda text, name=name, one=one: progress.update(bar, description=f"{name}, {one}: {text}"),
            )
            progress.advance(bar)
        for name, setting in settings_of_paper.items():
            path = folder / f"paper.{name}.json"
            progress.update(bar, description=f"the paper's {name.replace('_', ' ')}")
            if not path.exists():
                path.write_text(json.dumps(paper.compare(name, setting), indent=2) + "\n")
            progress.advance(bar)
        for name, entry in references.items():
            path = folder / f"published.{name}.{published_populations}.json"
            progress.update(bar, description=f"{name}: published posterior")
            if not path.exists():
                sampling = {"num_particles": settings.num_particles, "num_sweeps": settings.num_sweeps}
                found = published.compare(name, entry, published_populations, sampling)
                path.write_text(json.dumps(found, indent=2) + "\n")
            progress.advance(bar)
    # The page has all that this size of measurement has found so far, whatever was asked for now.
    paths = [folder / f"{name}.{one}.json" for name in ENTRIES for one in STAGES]
    results = [json.loads(path.read_text()) for path in paths if path.exists()]
    others = [json.loads(path.read_text()) for path in sorted(folder.glob(f"published.*.{published_populations}.json"))]
    models_of_paper = [json.loads(path.read_text()) for path in sorted(folder.glob("paper.*.json"), reverse=True)]
    report.write(page, results, others, models_of_paper, os.cpu_count() or 1)
    typer.echo(f"wrote {page}")


if __name__ == "__main__":
    typer.run(main)
