"""The registry of experiments: every folder next to this file that has an `experiment.py` is one.

That module defines `EXPERIMENT`; `study.py` in the same folder defines `STUDY`, the paper's comparisons. Both are
imported on demand.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from popgibbs.paper.experiment import Experiment
    from popgibbs.paper.study import Study


def names() -> list[str]:
    """The names of all experiments."""
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/experiment.py"))


def experiment(name: str) -> "Experiment":
    """An experiment by its name."""
    _check(name)
    return import_module(f"popgibbs.paper.{name}.experiment").EXPERIMENT


def study(name: str) -> "Study":
    """The comparisons of an experiment by its name."""
    _check(name)
    return import_module(f"popgibbs.paper.{name}.study").STUDY


def _check(name: str) -> None:
    if name not in names():
        raise ValueError(f"there is no experiment '{name}'; there are {', '.join(names())}")
