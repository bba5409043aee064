"""Time everything that a user waits for before the first result, and write it to `waiting.json`.

Every command and every walk through the library below is a process of its own. A walk is timed without a compilation
cache, and with one that a walk before it has filled. `--source DIR` measures another version of the package, such as a
checkout of an earlier commit, whose numbers are stored under `--label`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).with_name("waiting.json")
COMMANDS = {
    "popgibbs --help": [sys.executable, "-m", "popgibbs.cli", "--help"],
    "popgibbs show gmm": [sys.executable, "-m", "popgibbs.cli", "show", "gmm"],
    "import popgibbs": [sys.executable, "-c", "import popgibbs"],
}
REPEATS = 3  # of a command; its time is the least


def walk() -> None:
    """What a user does with the shipped mixture sampler, one step after another, timed from the start of Python."""
    times: dict[str, float] = {}
    counts: dict[str, int] = {}
    last = [time.perf_counter()]
    compiled = [0]

    def done(step: str) -> None:
        now = time.perf_counter()
        times[step], last[0] = now - last[0], now
        counts[step], compiled[0] = compiled[0], 0

    import jax
    import numpy as np
    import optax

    import popgibbs  # noqa: F401
    from popgibbs.paper import registry, runs

    if cache := os.environ.get("WAITING_CACHE"):
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    def heard(event: str, *_: Any, **__: Any) -> None:
        compiled[0] += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(heard)
    mixture = registry.experiment("gmm")
    done("import")
    sampler, _ = runs.load(mixture, mixture.shipped / mixture.default)
    done("load and check the shipped sampler")
    generator = np.random.default_rng(0)
    key = jax.random.key(0)
    points = {"x": generator.normal(size=(100, 100, 2)).astype(np.float32)}
    posterior = sampler.sample(key, points, num_sweeps=19, num_particles=10)
    done("first posterior: 100 instances of 100 points, K=20, L=10")
    sampler.sample(key, points, num_sweeps=19, num_particles=10)
    done("the same again")
    sampler.sample(key, points, num_sweeps=9, num_particles=10)
    done("K=10")
    posterior = posterior.extend(key, 5)
    done("extend by 5")
    posterior.extend(key, 6)
    done("extend by 6")
    sampler.sample(key, points, num_sweeps=19, num_particles=20)
    done("L=20")
    ragged = [{"x": generator.normal(size=(n, 2)).astype(np.float32)} for n in (40, 55, 70, 120, 90, 65, 110)]
    sampler.sample(key, ragged, num_sweeps=19, num_particles=10)
    done("seven instances of 40 to 120 points")

    def simulate(key: Any) -> Any:
        return mixture.simulate(key, points=60)[0]

    for step in ("fit, one step", "fit again, one step"):
        sampler.fit(key, simulate, num_steps=1, optimiser=optax.adam(1e-3), progress=False)
        done(step)
    print(json.dumps({"seconds": times, "compilations": counts}))


def _seconds(command: list[str], environment: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def measure(source: Path | None) -> dict[str, Any]:
    """The seconds of every command and of every step of the walk, without and with a filled cache."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    if source is not None:
        environment["PYTHONPATH"] = str(source.resolve())
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        for name, command in COMMANDS.items():
            times = [_seconds(command, {**environment, "XDG_CACHE_HOME": cache}) for _ in range(REPEATS)]
            found[name] = min(times)
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--walk"]
        for column, kept in [("cold", ""), ("filling the cache", cache), ("cached", cache)]:
            ran = subprocess.run(
                command, env={**environment, "WAITING_CACHE": kept}, check=True, stdout=subprocess.PIPE, text=True
            )
            found[column] = json.loads(ran.stdout.splitlines()[-1])
    return found


def show(results: dict[str, Any]) -> Table:
    columns = [f"{label}, {part}" for label in results for part in ("cold", "cached")]
    table = Table("seconds (compilations)", *columns)
    for command in COMMANDS:
        table.add_row(command, *(cell for found in results.values() for cell in (f"{found[command]:.2f}", "")))
    steps = next(iter(results.values()))["cold"]["seconds"]
    for step in steps:
        cells = []
        for found in results.values():
            for column in ("cold", "cached"):
                part = found[column]
                cells.append(f"{part['seconds'][step]:.2f} ({part['compilations'][step]})")
        table.add_row(step, *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--label", default="now")
    parser.add_argument("--source", type=Path, help="the `src` folder of another version")
    parser.add_argument("--walk", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.walk:
        return walk()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[given.label] = measure(given.source)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    Console().print(show(results))


if __name__ == "__main__":
    main()
