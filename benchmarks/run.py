"""Time all experiments, or the named ones, for popgibbs and its peers, and write the results to `results.json`.

Each contender is a separate process with its own devices and peak memory. The contenders of an experiment are compiled
first, one at a time; then they alternate in short turns, so that other load on the machine affects all of them alike. A
number is the median over the turns. Experiments run one after another, because waiting processes would take memory and
caches. The results of an experiment come from one run; those of experiments that are not named stay in the file.

    python -m benchmarks.run --before DIR gmm

compares with another version of popgibbs instead, whose `src` folder is DIR, and writes nothing.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.contenders import VIDEO_SWEEPS, VIDEOS

TURN_SECONDS, MOST_STEPS = 0.5, 20
TURNS = {"gmm": 15, "dmm": 15, "bmnist": 3}  # steps of coix on videos take many seconds
SETTINGS = {
    "gmm": "batch 20, 60 points, K=5, 10 particles, gradients and optimiser",
    "dmm": "batch 20, 200 points, K=8, 10 particles, gradients and optimiser",
    "bmnist": f"batch {VIDEOS}, 3 digits, 10 frames, K={VIDEO_SWEEPS + 1}, 10 particles, gradients and optimiser",
}
RESULTS = Path(__file__).with_name("results.json")
OURS = {"gmm": "popgibbs_gmm_step", "dmm": "popgibbs_dmm_step", "bmnist": "popgibbs_bmnist_step"}
PEERS = {
    "gmm": {"coix.algo.apgs": "coix_gmm_step", "coix with sweeps unrolled by hand": "coix_gmm_step_unrolled"},
    "dmm": {"coix.algo.apgs": "coix_dmm_step", "coix with sweeps unrolled by hand": "coix_dmm_step_unrolled"},
    "bmnist": {
        "coix.algo.apgs": "coix_bmnist_step",
        "coix with our image operations": "coix_bmnist_step_with_our_images",
        "popgibbs itself with twice the frames": "popgibbs_bmnist_step_of_twice_the_frames",
    },
}


class Contender:
    """A process that times steps on request; its name may end in @ and the folder of another version of popgibbs."""

    def __init__(self, name: str):
        name, _, source = name.partition("@")
        command = [sys.executable, "-m", "benchmarks.contenders", name]
        here = Path(__file__).parents[1]
        environment = {**os.environ, "PYTHONPATH": str(Path(source).resolve())} if source else None
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=here, env=environment
        )
        self.compile_seconds = self._answer()["compile_seconds"]

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(map(str, self._process.args))} ended with {self._process.wait()}")
        return json.loads(line)

    def time(self, num_steps: int) -> dict[str, float]:
        assert self._process.stdin is not None
        print(num_steps, file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def measure(names: list[str], experiment: str, console: Console) -> tuple[dict[str, Any], dict[str, int]]:
    """The medians of every contender of an experiment, and its number of steps per turn."""
    contenders = {name: Contender(name) for name in track(names, description=f"{experiment}: compiling", console=console)}
    # A first turn, which does not count, measures how many steps fill a turn.
    steps = {
        name: max(1, min(MOST_STEPS, round(TURN_SECONDS / contender.time(1)["seconds"])))
        for name, contender in contenders.items()
    }
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in track(range(TURNS[experiment]), description=f"{experiment}: timing", console=console):
        for name, contender in contenders.items():
            turns[name].append(contender.time(steps[name]))
    medians = {}
    for name, contender in contenders.items():
        seconds = statistics.median(turn["seconds"] for turn in turns[name])
        memory = turns[name][-1]["peak_mb"]
        medians[name] = {"seconds": seconds, "compile_seconds": contender.compile_seconds, "peak_mb": memory}
        contender.close()
    return medians, steps


def run(experiment: str, console: Console, before: Path | None = None) -> dict[str, Any]:
    """The cases of an experiment, with the settings, machine and versions of the run."""
    ours = OURS[experiment]
    peers = PEERS[experiment] if before is None else {"before": f"{ours}@{before}"}
    medians, steps = measure([ours, *peers.values()], experiment, console)
    cases = {
        f"{experiment} training step, {label}": {
            "ours": medians[ours],
            "peer": medians[peer],
            "ratio": medians[peer]["seconds"] / medians[ours]["seconds"],
        }
        for label, peer in peers.items()
    }
    if before is not None:
        return {"cases": cases}
    about = {
        "settings": SETTINGS[experiment],
        "turns": TURNS[experiment],
        "steps_a_turn": steps,
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.processor() or platform.machine(),
        "versions": {package: version(package) for package in ("popgibbs", "jax", "numpyro", "coix")},
    }
    return {"about": about, "cases": cases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", help=f"by default all: {', '.join(OURS)}")
    parser.add_argument("--before", type=Path, metavar="DIR", help="the `src` folder of another version of popgibbs")
    given = parser.parse_args()
    if unknown := [name for name in given.experiments if name not in OURS]:
        sys.exit(f"there is no experiment '{unknown[0]}'; there are {', '.join(OURS)}")
    console = Console(stderr=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for experiment in given.experiments or OURS:
        results[experiment] = run(experiment, console, given.before)
        if given.before is None:
            partial = RESULTS.with_suffix(".json.tmp")
            partial.write_text(json.dumps(results, indent=2) + "\n")
            partial.replace(RESULTS)
        Console().print(to_table(results[experiment]["cases"]))


def to_table(cases: dict[str, dict]) -> Table:
    table = Table("case", "ours (ms)", "peer (ms)", "ratio", "compile (s)", "peak memory (MB)")
    for case, result in cases.items():
        ours, peer = result["ours"], result["peer"]
        table.add_row(
            case,
            f"{1e3 * ours['seconds']:.1f}",
            f"{1e3 * peer['seconds']:.1f}",
            f"{result['ratio']:.1f}×",
            f"{ours['compile_seconds']:.1f} / {peer['compile_seconds']:.1f}",
            f"{ours['peak_mb']:.0f} / {peer['peak_mb']:.0f}",
        )
    return table


if __name__ == "__main__":
    main()
