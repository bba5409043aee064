"""A run that is killed at random moments ends bit for bit like one that is not; `tools/kill.py` is the full trial."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "kill.py"


def test_a_run_that_is_killed_three_times_ends_with_the_same_bits() -> None:
    command = [sys.executable, str(TOOL), "--kills", "3", "--seed", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "the same bits in 16 arrays and in the metrics of 24 steps" in ended.stdout
    assert ended.stderr == ""
