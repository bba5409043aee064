"""Refuse a reference that does not name every public name of the package exactly once."""

import ast
import re
from collections import Counter
from pathlib import Path

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"^::: popgibbs\.(\w+)$", flags=re.MULTILINE)


def on_pre_build(**_) -> None:
    """Compare the pages of the reference with `popgibbs.__all__`, which is read and not imported."""
    pages = sorted((ROOT / "docs" / "reference").glob("*.md"))
    named = Counter(name for page in pages for name in NAMED.findall(page.read_text()))
    public = set(_public(ROOT / "src" / "popgibbs" / "__init__.py"))
    wrong = {
        "not in the reference": public - set(named),
        "more than once in the reference": {name for name, count in named.items() if count > 1},
        "in the reference, but not in popgibbs.__all__": set(named) - public,
    }
    if told := [f"{what}: {', '.join(sorted(names))}" for what, names in wrong.items() if names]:
        raise PluginError("; ".join(told))


def _public(module: Path) -> list[str]:
    for statement in ast.parse(module.read_text()).body:
        if isinstance(statement, ast.Assign) and any(getattr(to, "id", "") == "__all__" for to in statement.targets):
            return ast.literal_eval(statement.value)
    raise PluginError(f"{module} has no __all__")
