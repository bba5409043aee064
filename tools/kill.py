"""Kill a training run repeatedly, and check that it ends bit for bit like an uninterrupted run.

    python tools/kill.py --kills 20 --seed 0

A process trains a small sampler and saves after every step. It gets SIGKILL at a random moment, at least half of the
time while it is writing a checkpoint, and the next process resumes. At the end all arrays of the last checkpoint
(parameters, the optimiser's state, the key, counters) and the metrics of every step that any process reported must equal
those of an uninterrupted run bit for bit.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax

import popgibbs as pg
from popgibbs.training import digest_of, read

STEPS_PER_KILL = 8
MOST_NEW_STEPS = 3  # most steps that a process makes before it is killed
SAVING = 0.05  # seconds, about the time to write a checkpoint
STARTING = 5.0  # seconds, about the time to the first step of a process
PATIENCE = 300.0  # seconds without a step after which a process counts as hung


# The run that is killed -------------------------------------------------------------------------------------------------


def model(x: jax.Array) -> None:
    """μ ~ Normal(0, 1), x_n ~ Normal(μ, 1)."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)


class Location(eqx.Module):
    """q(μ | x) = Normal(a x̄ + b, e^s)."""

    a: jax.Array
    b: jax.Array
    s: jax.Array

    def __call__(self, data: Any, latents: Any, model: Any) -> None:
        mean = pg.statistics.mean_pool(data["x"], data.mask["points"])
        numpyro.sample("mu", dist.Normal(self.a * mean + self.b, jnp.exp(self.s)))


def train(directory: Path, num_steps: int, metrics_file: Path) -> None:
    """Start or resume the run; write a digest of the metrics of every step."""
    jax.config.update("jax_disable_most_optimizations", True)  # to compile quickly
    proposal = Location(jnp.float32(0.2), jnp.float32(1.0), jnp.float32(0.5))
    sampler = pg.APG(model, data={"x": "points"}, blocks=[pg.Block("mu", proposal=proposal)])
    with metrics_file.open("w") as file:
        sampler.fit(
            jax.random.key(0),
            {"x": np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)},
            num_steps=num_steps,
            num_sweeps=1,
            num_particles=4,
            batch_size=2,
            optimiser=optax.adam(1e-2),
            checkpoints=directory,
            checkpoint_every=1,
            resume=True,
            report_every=1,
            trackers=[lambda step, metrics: print(json.dumps([step, digest_of(metrics)]), file=file, flush=True)],
            progress=False,
        )


# Killing it -------------------------------------------------------------------------------------------------------------


class Run:
    """A run in a directory, continued by one process after another."""

    def __init__(self, directory: Path, num_steps: int):
        self.directory = directory
        self.num_steps = num_steps
        self.num_processes = 0

    def start(self) -> subprocess.Popen[bytes]:
        self.num_processes += 1
        metrics = self.directory.with_suffix(f".{self.num_processes}")
        # Processes share a compilation cache, because compiling would be most of their work.
        compiled = {
            "JAX_COMPILATION_CACHE_DIR": str(self.directory.with_name("compiled")),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        command = [sys.executable, __file__, "--train", self.directory, str(self.num_steps), metrics]
        return subprocess.Popen(command, env=os.environ | compiled)

    def finish(self) -> None:
        if code := self.start().wait():
            sys.exit(f"a process ended with code {code}")

    def names(self) -> list[str]:
        return [child.name for child in self.directory.iterdir()] if self.directory.exists() else []

    def step(self) -> int:
        return max((int(name) for name in self.names() if name.isdigit()), default=0)

    def half_written(self) -> set[int]:
        """The inodes of checkpoints that are being written, or were when a process was killed."""
        found = set()
        for name in self.names():
            with suppress(FileNotFoundError):  # completed in the meantime
                if "orbax-checkpoint-tmp" in name:
                    found.add((self.directory / name).stat().st_ino)
        return found

    def metrics(self) -> dict[int, set[str]]:
        """The digests that processes reported, by step."""
        found: dict[int, set[str]] = {}
        for number in range(1, self.num_processes + 1):
            path = self.directory.with_suffix(f".{number}")
            text = path.read_text() if path.exists() else ""
            for line in text.splitlines(keepends=True):
                if line.endswith("\n"):  # the last line may be incomplete
                    step, digest = json.loads(line)
                    found.setdefault(step, set()).add(digest)
        return found


def kill_once(run: Run, generator: random.Random, moment: str) -> str:
    """Start a process and kill it at that moment; returns its activity: "starting", "training" or "saving"."""
    begun, left_over = run.step(), run.half_written()
    process = run.start()
    waiting_until = time.monotonic() + PATIENCE

    def wait_for(condition: Callable[[], bool]) -> None:
        while not condition():
            if process.poll() is not None:
                sys.exit(f"a process ended on its own with code {process.returncode}")
            if time.monotonic() > waiting_until:
                process.kill()
                sys.exit(f"a process made no step in {PATIENCE:.0f} s")
            time.sleep(0.0005)

    if moment == "starting":
        time.sleep(generator.uniform(0, STARTING))
    else:
        target = begun + generator.randint(1, MOST_NEW_STEPS)
        wait_for(lambda: run.step() >= target)
        if moment == "saving":
            wait_for(lambda: bool(run.half_written() - left_over))
        time.sleep(generator.uniform(0, SAVING))
    process.kill()
    process.wait()
    if run.half_written() - left_over:
        return "saving"
    return "starting" if run.step() == begun else "training"


def kill(num_kills: int, seed: int, directory: Path) -> dict[str, int]:
    """Kill a run `num_kills` times or more, at least half of them while it saves; returns kills by activity."""
    generator = random.Random(seed)
    num_steps = STEPS_PER_KILL * num_kills
    whole, killed = Run(directory / "whole", num_steps), Run(directory / "killed", num_steps)
    whole.finish()
    counts = {"starting": 0, "training": 0, "saving": 0}
    while (done := sum(counts.values())) < num_kills or 2 * counts["saving"] < num_kills:
        moment = "saving" if done % 2 == 0 or done >= num_kills else generator.choice(["starting", "training"])
        counts[kill_once(killed, generator, moment)] += 1
        print(f"kill {done + 1} at step {killed.step()}: {counts}", flush=True)
    killed.finish()
    compare(whole, killed)
    return counts


def compare(whole: Run, killed: Run) -> None:
    """Exit with the differences, if there are any."""
    wanted, found = read(whole.directory), read(killed.directory)
    if wanted.step != found.step or wanted.step != whole.num_steps:
        sys.exit(f"the runs ended at steps {wanted.step} and {found.step}")
    differ = [
        name
        for name in sorted({*wanted.arrays, *found.arrays})
        if name not in wanted.arrays
        or name not in found.arrays
        or wanted.arrays[name].tobytes() != found.arrays[name].tobytes()
    ]
    metrics = whole.metrics(), killed.metrics()
    steps = [step for step in range(1, whole.num_steps + 1) if metrics[0].get(step) != metrics[1].get(step)]
    if differ or steps:
        sys.exit(f"MISMATCH in the arrays {differ} and in the metrics of the steps {steps}")
    print(f"the same bits in {len(wanted.arrays)} arrays and in the metrics of {whole.num_steps} steps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)  # for the processes that are killed
    arguments = parser.parse_args()
    if arguments.train:
        directory, num_steps, metrics = arguments.train
        train(Path(directory), int(num_steps), Path(metrics))
        return
    with tempfile.TemporaryDirectory() as directory:
        counts = kill(arguments.kills, arguments.seed, Path(directory))
    print(f"{sum(counts.values())} kills with seed {arguments.seed}: {counts}")


if __name__ == "__main__":
    main()
