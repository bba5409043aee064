"""The paper's tables and figures of an experiment, in one call."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.markdown import Markdown

from popgibbs._files import whole
from popgibbs.paper.plots import figures
from popgibbs.paper.plots.pictures import NUM_INSTANCES, draw_samples, save_samples
from popgibbs.paper.reproduction import curves
from popgibbs.paper.reproduction.methods import measure, methods_of
from popgibbs.paper.reproduction.pages import page
from popgibbs.paper.reproduction.store import Store, machine, write_json
from popgibbs.paper.reproduction.work import Work
from popgibbs.paper.study import Study, label_of
from popgibbs.paper.tables import held_out
from popgibbs.training import fingerprint, versions


def reproduce(study: Study, preset: str, directory: Path, *, seed: int, console: Console) -> None:
    """Measure what is missing, then write `results.json`, `results.md` and the figures.

    Measurements are saved in the directory, so that after a stop the same call continues.
    """
    if preset not in study.presets:
        raise ValueError(f"there is no preset '{preset}'; there are {', '.join(study.presets)}")
    begun_with = {"experiment": study.experiment.name, "preset": preset, "seed": seed}
    store = Store(directory, {**begun_with, **_behind(study, preset)})
    work = Work(study, study.presets[preset], store, seed, console)
    results = {
        **begun_with,
        "scaled_down": work.preset.scaled_down,
        "machine": machine(),
        "samplers": work.trained_with(),
        "shown_ks": study.shown_ks,
        "paper": study.paper,
        "limits": study.limits,
        "reasons": study.reasons,
        **_measured(work),
    }
    results["figures"] = [*_curves(work, results), *_pictures(work)]
    write_json(directory / "results.json", results)
    text = page(results)
    (directory / "results.md").write_text(text)
    console.print(Markdown(text))
    console.print(f"Written: {directory / 'results.md'}, {directory / 'results.json'} and figures", soft_wrap=True)


def _behind(study: Study, preset: str) -> dict[str, Any]:
    """Everything else that the numbers depend on; if any of it changes, earlier measurements cannot be reused."""
    shipped = {variant: study.experiment.shipped / variant for variant in study.variants}
    return {
        "versions": versions(),
        "sizes": asdict(study.presets[preset]),
        "samplers": {variant: fingerprint(run) for variant, run in shipped.items() if run.is_dir()},
    }


def _measured(work: Work) -> dict[str, Any]:
    results: dict[str, Any] = {"settings": []}
    for number, setting in enumerate(work.preset.settings):
        samplers = work.samplers(setting.size)
        methods = methods_of(work, samplers, setting)
        results["settings"].append(measure(work, methods, setting))
        if number == 0 and work.preset.num_runs:
            results["convergence"] = curves.convergence(work, methods)
        if number == 0 and work.study.strategies is not None:
            results["fixed_budget"] = curves.fixed_budget(work, work.study.strategies(samplers))
    if work.study.learning is not None:
        results["learning"] = curves.learning(work, work.study.learning)
    return results


def _curves(work: Work, results: Mapping[str, Any]) -> Iterator[str]:
    """Draw the curves that were measured; yields the names of the files."""
    drawn = {
        "convergence": figures.convergence_on_one,
        "fixed_budget": figures.fixed_budget,
        "learning": figures.learning,
    }
    for name, draw in drawn.items():
        if name in results:
            figures.save(draw(results[name]), work.store.directory / f"{name}.png")
            yield f"{name}.png"


def _pictures(work: Work) -> Iterator[str]:
    """Draw samples over sweeps next to one of RWS, unless the files exist; yields the names of the files."""
    for size in work.preset.pictures:
        stem = "-".join(["samples", *label_of(size).replace(",", "").split()])
        paths = [work.store.directory / f"{stem}{suffix}" for suffix in work.study.suffixes]
        yield from (path.name for path in paths)
        if all(path.exists() for path in paths):
            continue
        work.console.print(f"Pictures of samples: {label_of(size)} ...")
        samplers = work.samplers(size)
        shown, _ = held_out(work.experiment, work.seed, NUM_INSTANCES, size)
        in_sweeps = samplers[work.study.variants[0]]
        drawings = draw_samples(work.experiment, in_sweeps, jax.random.key(work.seed), shown, samplers["rws"])
        for path in paths:
            with whole(path) as partial:
                save_samples(drawings, partial)
