"""The README's example runs as it stands, with fewer training steps."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    names = {}
    exec(re.sub(r"num_steps=[\d_]+", "num_steps=2", example), names)
    assert len(names["posterior"]) == 2
    assert names["posterior"][1]["c"].shape == (4, 10, 150)
