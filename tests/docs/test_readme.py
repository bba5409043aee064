"""The README's example runs as it stands, with fewer training steps; its tables are those of the results."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def test_the_readmes_example_runs(quick_compilation):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    names = {}
    exec(re.sub(r"num_steps=[\d_]+", "num_steps=2", example), names)
    assert len(names["posterior"]) == 2
    assert names["posterior"][1]["c"].shape == (4, 10, 150)


def test_the_readmes_tables_are_those_of_the_results():
    filled = runpy.run_path(str(ROOT / "docs" / "tables.py"))["filled"]
    text = README.read_text()
    assert "<!-- results: gmm -->" in text
    assert filled(text) == text
