"""Every exported name is documented, and the examples in its docstrings run.

The section is called `Examples:`: mkdocstrings renders doctests as code there, but as quotations under `Example:`.
"""

import doctest
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import popgibbs

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = (popgibbs, popgibbs.statistics, popgibbs.distributions)


def exported() -> dict[str, Any]:
    """Exported classes and functions by the address that users write, each once; constants have no docstring."""
    found: dict[str, Any] = {}
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and not any(value is other for other in found.values()):
                found[f"{module.__name__}.{name}"] = value
    return found


NAMES = exported()


def documented(value: Any) -> Iterator[tuple[str, str]]:
    """The docstrings of an object and of the public members that its class defines itself, by member name."""
    yield "", inspect.getdoc(value) or ""
    if isinstance(value, type):
        for name, member in vars(value).items():
            plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
            is_documented = callable(plain) or isinstance(plain, property)
            if is_documented and not name.startswith("_") and plain.__doc__:
                yield f".{name}", inspect.cleandoc(plain.__doc__)


def has_parameters(value: Any) -> bool:
    """Whether users pass it arguments. They subclass abstract classes, catch errors, and get a `Posterior`."""
    is_given = isinstance(value, type) and issubclass(value, (Exception, popgibbs.Posterior))
    return not is_given and not inspect.isabstract(value) and bool(inspect.signature(value).parameters)


def run(text: str, name: str, names: dict[str, Any]) -> str:
    """Run the examples of a docstring in these names; the failures as text."""
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    test.globs = names  # the parser made a copy
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=failures.append, clear_globs=False)
    return "".join(failures)


@pytest.fixture(scope="module")
def shared(quick_compilation: None) -> dict[str, Any]:
    """The names that the package's own docstring defines for all examples."""
    names: dict[str, Any] = {"__name__": "examples"}
    failures = run(inspect.getdoc(popgibbs) or "", "popgibbs", names)
    assert not failures, failures
    assert {"pg", "model", "Location", "sampler", "instances", "posterior", "key"} <= set(names)
    return names


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name: str, shared: dict[str, Any], tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for member, text in documented(NAMES[name]):
        failures = run(text, name + member, dict(shared))
        assert not failures, failures


@pytest.mark.parametrize("name", NAMES)
def test_exported_names_are_documented(name: str):
    value = NAMES[name]
    text = inspect.getdoc(value) or ""
    assert re.search(r"^Examples:$", text, flags=re.MULTILINE), f"the docstring of {name} has no example"
    assert ">>> " in text, f"the example of {name} does not run"
    if has_parameters(value):
        assert "Args:\n" in text or "Attributes:\n" in text, f"the docstring of {name} does not describe its arguments"
