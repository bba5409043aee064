"""Run every case, ours and the peer's by turns, and write `results.json`.

A contender runs in a process of its own, so that devices and peak memory are its own; the rounds alternate, so that
whatever else the machine does falls on both; a number is the median over the rounds.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

ROUNDS = 3
RESULTS = Path(__file__).with_name("results.json")
CASES = {
    "gmm training step, coix.algo.apgs": ("popgibbs_gmm_step", "coix_gmm_step"),
    "gmm training step, coix with sweeps unrolled by hand": ("popgibbs_gmm_step", "coix_gmm_step_unrolled"),
}


def run_contender(name: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.contenders", name]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    return json.loads(done.stdout.splitlines()[-1])


def median(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(entry[key] for entry in rounds) for key in rounds[0]}


def main() -> None:
    contenders = list(dict.fromkeys(name for pair in CASES.values() for name in pair))
    turns = [name for _ in range(ROUNDS) for name in contenders]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for name in track(turns, description="timing", console=Console(stderr=True)):
        rounds[name].append(run_contender(name))
    medians = {name: median(rounds[name]) for name in contenders}
    cases = {
        case: {
            "ours": medians[ours],
            "peer": medians[peer],
            "ratio": medians[peer]["seconds"] / medians[ours]["seconds"],
        }
        for case, (ours, peer) in CASES.items()
    }
    packages = ("popgibbs", "jax", "numpyro", "coix")
    about = {
        "settings": "batch 20, 60 points, 10 particles, K=5, gradients and optimiser",
        "rounds": ROUNDS,
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.processor() or platform.machine(),
        "versions": {package: version(package) for package in packages},
    }
    partial = RESULTS.with_suffix(".json.tmp")
    partial.write_text(json.dumps({"about": about, "cases": cases}, indent=2) + "\n")
    partial.replace(RESULTS)
    Console().print(to_table(cases))


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
