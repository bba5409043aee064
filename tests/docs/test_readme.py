"""The README's example runs as it stands, with less training and fewer instances; its tables are those of the results."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def test_the_readmes_example_runs(quick_compilation):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    names = {}
    quick = re.sub(r"num_steps=[\d_]+", "num_steps=2", example).replace("100)", "10)")
    exec(quick, names)
    assert len(names["posterior"]) == 10
    assert names["posterior"][1]["theta"].shape == (4, 10, 8)


def test_tables_of_the_readme_and_the_docs_are_those_of_the_results():
    tables = runpy.run_path(str(ROOT / "docs" / "tables.py"))
    assert "<!-- results: overview -->" in README.read_text()
    for page in tables["PAGES"]:
        assert tables["filled"](page.read_text()) == page.read_text(), page
