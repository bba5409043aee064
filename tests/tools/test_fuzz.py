"""A few hundred of the damaged files of `tools/fuzz.py`; run the tool itself after changing how files are read."""

from collections import Counter
from pathlib import Path

import pytest

import fuzz

pytestmark = pytest.mark.usefixtures("quick_compilation")

NUM_CASES = 300


def test_damaged_files_are_refused_or_read_correctly(tmp_path: Path) -> None:
    bench = fuzz.Bench(tmp_path)
    results = [bench.result(seed=1, case=case) for case in range(NUM_CASES)]
    assert [result for result in results if result.outcome in fuzz.FAILURES] == []
    counts = Counter(result.outcome for result in results)
    assert all(counts[outcome] for outcome in (fuzz.REFUSED, fuzz.UNCHANGED, fuzz.FALLBACK, fuzz.OTHER))
