"""The experiments that there are: every folder beside this file with an `experiment.py` is one.

That module defines `EXPERIMENT`, and `study.py` beside it `STUDY`, the paper's comparisons. Both are imported on demand.
"""

from importlib import import_module
from pathlib import Path

from popgibbs.paper.experiment import Experiment
from popgibbs.paper.study import Study


def names() -> list[str]:
    """All experiments, by name."""
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/experiment.py"))


def experiment(name: str) -> Experiment:
    """An experiment by its name."""
    _check(name)
    return import_module(f"popgibbs.paper.{name}.experiment").EXPERIMENT


def study(name: str) -> Study:
    """The comparisons of an experiment by its name."""
    _check(name)
    return import_module(f"popgibbs.paper.{name}.study").STUDY


def _check(name: str) -> None:
    if name not in names():
        raise ValueError(f"there is no experiment '{name}'; there are {', '.join(names())}")
