"""Read thousands of damaged data files and checkpoints, and count the outcomes.

    python tools/fuzz.py --cases 10000 --seed 0     # exit code 1 if anything is wrong
    python tools/fuzz.py --only 123 --seed 0        # one case again, with its traceback

Half of the cases are data files, half are runs with two checkpoints. The seed and the number of a case determine it,
except that the storage draws the names of checkpoint files at random, so their counts vary by a few. Cases run in a
separate process, which is replaced when it dies or hangs.
"""

import argparse
import multiprocessing
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

import damaged_checkpoints
import damaged_npz
from popgibbs.data import read_instances
from popgibbs.training import SAMPLER, CheckpointError, read_about, read_arrays, to_names

REFUSED, UNCHANGED, FALLBACK, OTHER = "refused", "unchanged", "fallback", "other valid file"
TRACEBACK, HANG, MEMORY, WRONG = "TRACEBACK", "HANG", "MEMORY", "WRONG NUMBERS"
OUTCOMES = (REFUSED, UNCHANGED, FALLBACK, OTHER, TRACEBACK, HANG, MEMORY, WRONG)
FAILURES = (TRACEBACK, HANG, MEMORY, WRONG)

LONGEST = 300  # characters of an error message, not counting the path
SECONDS = 60.0  # time limit of a case
MOST_MEMORY = 2**30  # bytes beyond the peak of earlier cases; files are a few kilobytes


class Result(NamedTuple):
    case: int
    kind: str
    outcome: str
    detail: str = ""


class Bench:
    """The state that the cases of a process share."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.run = damaged_checkpoints.make_run(directory / "runs")
        self.peak = _peak()

    def result(self, seed: int, case: int) -> Result:
        """Write a damaged file and read it as users do."""
        random = np.random.default_rng((seed, case))
        of_checkpoints = case % 2 == 1
        kinds = damaged_checkpoints.KINDS if of_checkpoints else damaged_npz.KINDS
        kind = kinds[(case // 2) % len(kinds)]
        place = self.directory / "case"
        _remove(place)
        read = self._read_checkpoints if of_checkpoints else self._read_npz
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                outcome, detail = read(random, kind, place, caught)
        except (ValueError, CheckpointError, OSError) as error:
            outcome, detail = _sentence(error, place)
        except Exception:
            outcome, detail = TRACEBACK, traceback.format_exc()
        if _peak() > self.peak + MOST_MEMORY:
            outcome, self.peak = MEMORY, _peak()
        return Result(case, f"{'checkpoint' if of_checkpoints else 'npz'}: {kind}", outcome, detail)

    def _read_npz(self, random: np.random.Generator, kind: str, place: Path, caught: list[Any]) -> tuple[str, str]:
        sound = damaged_npz.write(random, kind, place)
        found = read_instances(place, sound.axes)
        if _same(found, damaged_npz.expected(sound.arrays, sound.axes)):
            return UNCHANGED, ""
        try:  # A file that NumPy itself reads, with correct checksums, may be one that someone intended.
            with np.load(place, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except Exception as error:
            return WRONG, f"read a file that NumPy does not read: {error}"
        return (OTHER, "") if _same(found, damaged_npz.expected(arrays, sound.axes)) else (WRONG, "")

    def _read_checkpoints(
        self, random: np.random.Generator, kind: str, place: Path, caught: list[Any]
    ) -> tuple[str, str]:
        damaged_checkpoints.write(random, kind, self.run, place)
        about, arrays = read_about(place), read_arrays(place)
        loaded = to_names({SAMPLER: eqx.filter(self.run.sampler.load(place).built, eqx.is_inexact_array)})
        for step in self.run.arrays:
            expected = self.run.arrays[step]
            if _same([arrays], [expected]) and _same([loaded], [{name: expected[name] for name in loaded}]):
                break
        else:
            return WRONG, "the arrays belong to neither step"
        if about != self.run.about[step]:  # edited together with its checksum
            return (OTHER, "") if kind == "description edited" else (WRONG, "the description differs")
        newest = max(self.run.arrays)
        if step == newest:
            return UNCHANGED, ""
        silent = not caught and (place / str(newest)).is_dir()
        return (WRONG, "an older checkpoint was read without a warning") if silent else (FALLBACK, "")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sentence(error: Exception, place: Path) -> tuple[str, str]:
    """Check that a refusal is one short sentence."""
    message = str(error).replace(str(place), "FILE")
    good = bool(message) and "\n" not in message and len(message) <= LONGEST
    return (REFUSED, message) if good else (TRACEBACK, f"not a short sentence: {message!r}")


def _same(found: list[Any], expected: list[Any]) -> bool:
    """Whether all arrays agree, in the precision of the found ones."""
    if len(found) != len(expected):
        return False
    for a, b in zip(found, expected, strict=True):
        if set(a) != set(b) or any(np.shape(a[name]) != np.shape(b[name]) for name in a):
            return False
        with np.errstate(all="ignore"):
            cast = {name: np.asarray(b[name]).astype(np.asarray(a[name]).dtype) for name in a}
        if any(np.asarray(a[name]).tobytes() != cast[name].tobytes() for name in a):
            return False
    return True


# Processes --------------------------------------------------------------------------------------------------------------


def _work(connection: Any, directory: Path, seed: int, cases: list[int]) -> None:
    """Run cases one after another; a traceback that a thread prints on standard error counts too."""
    bench = Bench(directory)
    screen = os.open(directory / "stderr", os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    os.dup2(screen, 2)
    connection.send(None)
    for case in cases:
        connection.send(case)
        os.ftruncate(screen, 0)
        os.lseek(screen, 0, os.SEEK_SET)
        result = bench.result(seed, case)
        printed = os.pread(screen, 10_000, 0).decode(errors="replace")
        if "Traceback" in printed or "Error" in printed:
            result = result._replace(outcome=TRACEBACK, detail=printed)
        connection.send(result)


def run(seed: int, cases: list[int]) -> Iterator[Result]:
    """The results of cases in order, even if the process that reads them dies or hangs."""
    context = multiprocessing.get_context("spawn")
    while cases:
        with tempfile.TemporaryDirectory() as directory:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(sender, Path(directory), seed, cases), daemon=True)
            process.start()
            sender.close()
            begun, last = False, -1
            try:
                while cases:
                    if not receiver.poll(SECONDS if begun else 10 * SECONDS):
                        yield Result(last, "any", HANG, f"{SECONDS:.0f} seconds")
                        break
                    message = receiver.recv()
                    if message is None:
                        begun = True
                    elif isinstance(message, int):
                        last = message
                    else:
                        cases = cases[1:]
                        yield message
                else:
                    process.join()
                    return
            except EOFError:
                process.join()
                yield Result(last, "any", TRACEBACK, f"the process died with code {process.exitcode}")
            if not begun:
                raise RuntimeError("the process that reads damaged files did not start")
            process.kill()
            process.join()
            cases = [case for case in cases if case != last]


# The table --------------------------------------------------------------------------------------------------------------


def table(results: list[Result]) -> str:
    """Counts by kind of damage and outcome."""
    counts = Counter((result.kind, result.outcome) for result in results)
    kinds = list(dict.fromkeys(sorted(result.kind for result in results)))
    rows = [["damage", *OUTCOMES, "all"]]
    for kind in kinds:
        of_kind = [counts[kind, outcome] for outcome in OUTCOMES]
        rows.append([kind, *map(str, of_kind), str(sum(of_kind))])
    totals = [sum(counts[kind, outcome] for kind in kinds) for outcome in OUTCOMES]
    rows.append(["all", *map(str, totals), str(len(results))])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of a single case")
    arguments = parser.parse_args()
    started, results = time.perf_counter(), []
    for result in run(arguments.seed, list(range(arguments.cases)) if arguments.only is None else [arguments.only]):
        results.append(result)
        if result.outcome in FAILURES or arguments.only is not None:
            print(f"case {result.case} ({result.kind}): {result.outcome}: {result.detail}", flush=True)
    sentences = {re.sub(r"[0-9'].*", "", result.detail) for result in results if result.outcome == REFUSED}
    print(table(results))
    print(f"{len(results)} cases in {time.perf_counter() - started:.0f} s, {len(sentences)} kinds of sentences")
    sys.exit(any(result.outcome in FAILURES for result in results))


if __name__ == "__main__":
    main()
