"""The measurements of one example, each of which is kept in a file, so that a second run continues."""

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tools.gallery.entries import Entry
from tools.gallery.measures import coverage, errors, evidence, measure
from tools.gallery.moments import Moments

import popgibbs as pg

STAGES = ("training-free", "trained")
_FIRST_SUMMARY = """
import time
begun = time.perf_counter()
import jax, popgibbs as pg
from examples import {name} as example
sampler = pg.APG(example.model, data=example.AXES, example=example.example)
posterior = sampler.sample(
    jax.random.key(0), [example.example], num_populations={num_populations}, num_particles={num_particles},
    num_sweeps={num_sweeps},
)
posterior.summary(0)
print(time.perf_counter() - begun)
"""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The size of the measurements; results of other settings are kept apart."""

    instances: int = 500
    compared: int = 100
    num_populations: int = 10
    num_particles: int = 20
    num_sweeps: int = 19
    num_steps: int = 2_000

    @property
    def folder(self) -> str:
        return "-".join(str(value) for value in asdict(self).values())

    @property
    def sampling(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("num_populations", "num_particles", "num_sweeps")}


def run(entry: Entry, stage: str, settings: Settings, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """The measurements of one stage, which are read if they have been made before."""
    path = folder / f"{entry.name}.{stage}.json"
    if not path.exists():
        found = _measured(entry, stage, settings, folder, say)
        path.write_text(json.dumps(found, indent=2) + "\n")
    return json.loads(path.read_text())


def _measured(entry: Entry, stage: str, settings: Settings, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    module, found = entry.module, {"name": entry.name, "stage": stage, "settings": asdict(settings)}
    sampler = pg.APG(module.model, data=module.AXES, example=module.example)
    if stage == "training-free":
        say("first summary on a cold cache")
        found["seconds_to_first_summary"] = first_summary(entry, settings)
    else:
        say("training")
        begun = time.perf_counter()
        given = [module.instances] if hasattr(module, "instances") else []  # where the model itself is learned
        fit = sampler.fit(jax.random.key(1), *given, num_steps=settings.num_steps, progress=False)
        sampler, found["seconds_training"] = fit.sampler, time.perf_counter() - begun

    say("sampling")
    instances, latents = sampler.simulate(jax.random.key(2), settings.instances)
    begun = time.perf_counter()
    posterior = sampler.sample(jax.random.key(3), instances, **settings.sampling)
    found["seconds_sampling"] = time.perf_counter() - begun
    own = measure(posterior, latents, entry.quantities)
    found["coverage"] = coverage(own.covered)
    found["acceptance"] = _by_block(posterior, posterior.acceptance)
    found["num_degenerate"] = int(posterior.degenerate.sum())

    say("reference")
    few = slice(settings.compared)
    learned = stage == "trained" and hasattr(module, "instances")
    kept = folder / f"{entry.name}{'.learned' if learned else ''}.pickle"
    reference = _reference(kept, lambda: entry.reference(sampler.model, instances[few], latents[few]))
    found |= errors(own.moments, reference)
    if reference.log_evidence is not None:
        found |= evidence(posterior, reference.log_evidence)
    elif entry.enumerate is not None:
        say("evidence of small instances")
        small, _ = sampler.simulate(jax.random.key(4), settings.compared, like=[entry.small])
        exact = np.array([entry.enumerate(instance) for instance in small])
        posterior = sampler.sample(jax.random.key(5), small, **settings.sampling)
        found |= evidence(posterior, exact)
    return found


def first_summary(entry: Entry, settings: Settings) -> float:
    """Seconds from import to the first training-free summary, in a new process that compiles everything."""
    program = _FIRST_SUMMARY.format(name=entry.name, **settings.sampling)
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"the first summary of {entry.name} failed:\n{ended.stderr}")
    return float(ended.stdout.split()[-1])


def _by_block(posterior: Any, rates: np.ndarray) -> dict[str, float]:
    """Means over instances, populations and sweeps after the first draw."""
    return {block: float(rates[..., 1:, index].mean()) for index, block in enumerate(posterior.blocks)}


def _reference(path: Path, make: Callable[[], Moments]) -> Moments:
    """Both stages compare with the same references, unless the model is learned."""
    if not path.exists():
        made = make()
        path.write_bytes(pickle.dumps(made))
    return pickle.loads(path.read_bytes())
