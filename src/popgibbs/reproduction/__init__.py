"""The paper's tables and figures of an experiment, by one call."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.markdown import Markdown

from popgibbs import figures
from popgibbs.experiments.study import Preset, Setting, Study
from popgibbs.experiments.tables import held_out
from popgibbs.pictures import NUM_INSTANCES, draw_samples, save_samples
from popgibbs.reproduction import curves, samplers
from popgibbs.reproduction.methods import all_methods, measure
from popgibbs.reproduction.pages import page
from popgibbs.reproduction.store import Store, machine, write_json


def reproduce(study: Study, preset_name: str, directory: Path, *, seed: int, console: Console) -> None:
    """Measure what is not yet measured, then write `results.json`, `results.md` and the figures.

    Everything measured is kept in the directory, so that after a stop the same call goes on.
    """
    if preset_name not in study.presets:
        raise ValueError(f"there is no preset '{preset_name}'; there are {', '.join(study.presets)}")
    preset = study.presets[preset_name]
    store = Store(directory, {"experiment": study.experiment.name, "preset": preset_name, "seed": seed})
    found = samplers.ready(study, directory, seed, console)
    results = {
        "experiment": study.experiment.name,
        "preset": preset_name,
        "scaled_down": preset.scaled_down,
        "seed": seed,
        "machine": machine(),
        "samplers": samplers.described(found),
        "shown_ks": study.shown_ks,
        "paper": study.paper,
        "limits": study.limits,
        "reasons": study.reasons,
        **_measured(store, study, preset, found, seed, console),
    }
    results["figures"] = list(_figures(results, study, preset, found, directory, seed, console))
    write_json(directory / "results.json", results)
    text = page(results)
    (directory / "results.md").write_text(text)
    console.print(Markdown(text))
    console.print(f"Written: {directory / 'results.md'}, {directory / 'results.json'} and figures", soft_wrap=True)


def _measured(
    store: Store, study: Study, preset: Preset, found: dict[str, Path], seed: int, console: Console
) -> dict[str, Any]:
    results: dict[str, Any] = {"settings": []}
    for number, setting in enumerate(preset.settings):
        loaded = samplers.loaded(study.experiment, found, setting.size)
        methods = all_methods(store, study, preset, loaded, setting.size, seed)
        results["settings"].append({"label": setting.label, **measure(store, study, methods, setting, seed, console)})
        if number:
            continue
        if preset.num_runs:
            results["convergence"] = curves.convergence(store, study, preset, methods, seed, console)
        if study.strategies is not None:
            results["fixed_budget"] = curves.fixed_budget(store, study, preset, loaded, seed, console)
    if study.learning is not None:
        results["learning"] = curves.learning(store, study, study.learning, preset, seed, console)
    return results


def _figures(
    results: dict[str, Any],
    study: Study,
    preset: Preset,
    found: dict[str, Path],
    directory: Path,
    seed: int,
    console: Console,
) -> Iterator[str]:
    """Write the figures; yields their names."""
    drawn = {
        "convergence": figures.convergence_on_one,
        "fixed_budget": figures.fixed_budget,
        "learning": figures.learning,
    }
    for name, draw in drawn.items():
        if name in results:
            figures.save(draw(results[name]), directory / f"{name}.png")
            yield f"{name}.png"
    for size in preset.pictures:
        label = Setting(size, 0).label
        console.print(f"Pictures of samples: {label} ...")
        loaded = samplers.loaded(study.experiment, found, size)
        shown, _ = held_out(study.experiment, seed, NUM_INSTANCES, size)
        drawings = draw_samples(study.experiment, loaded[study.variants[0]], jax.random.key(seed), shown, loaded["rws"])
        for suffix in study.suffixes:
            name = f"samples, {label}".replace(", ", "-").replace(" ", "-") + suffix
            save_samples(drawings, directory / name)
            yield name
