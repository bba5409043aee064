"""The arguments of a run as JSON, and the check that a resumed run has the same ones."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import optax


def refuse_changes(where: Any, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise if an argument differs from that of the run in a directory.

    Raises:
        ValueError: The message names the first argument that differs, with both values.
    """
    for name, value in now.items():
        if (before := saved.get(name)) != value:
            found, wanted = _first_difference(before, value) if isinstance(value, list) else (f"={before}", value)
            raise ValueError(
                f"the run in {where} was made with {name}{found}, not {wanted}; keep that, or start a new run elsewhere"
            )


def _first_difference(before: Any, now: list[str]) -> tuple[str, str]:
    """The first entries that differ in two lists, such as the hyperparameters of optimisers."""
    pairs = zip_longest(before or [], now, fillvalue="nothing more")
    return next((f" '{was}'", f"'{wanted}'") for was, wanted in pairs if was != wanted)


def hyperparameters(optimiser: optax.GradientTransformation) -> list[str]:
    """The functions of an optimiser, in order, with the numbers and names in their closures.

    Optax keeps hyperparameters in closures: `adam(1e-3)` is `["scale_by_adam.b1=0.9", ..., "scale.step_size=-0.001"]`.
    Opaque objects are named by their type.
    """
    found: list[str] = []
    _collect("optimiser", (optimiser.init, optimiser.update), found, set())
    return found


def _collect(name: str, value: Any, found: list[str], seen: set[int]) -> None:
    if value is None or isinstance(value, bool | int | float | complex | str | np.generic):
        found.append(f"{name}={value}")
    elif isinstance(value, type):
        found.append(f"{name}={value.__qualname__}")
    elif hasattr(value, "__array__"):
        found.append(f"{name}={_written(np.asarray(value))}")
    elif id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, FunctionType):
            numbers = [constant for constant in value.__code__.co_consts if isinstance(constant, int | float)]
            found.append(f"{_label(value)}({', '.join(map(str, numbers))})")
        elif not isinstance(value, Mapping | Sequence | partial):
            found.append(f"{name}={type(value).__qualname__}")
        for part, inside in _parts(name, value):
            _collect(part, inside, found, seen)


def _written(array: np.ndarray) -> str:
    return str(array.tolist()) if array.size <= 8 else hashlib.sha256(array.tobytes()).hexdigest()[:16]


def _label(function: FunctionType) -> str:
    """The name of a function, or of the one that made it."""
    return function.__qualname__.split(".<locals>")[0]


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of an object, by name."""
    if isinstance(value, FunctionType):
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # a variable that has no value yet
                yield f"{_label(value)}.{variable}", cell.cell_contents
    elif isinstance(value, MethodType):
        yield name, value.__func__
        yield name, value.__self__
    elif isinstance(value, partial):
        yield from ((name, part) for part in (value.func, value.args, value.keywords))
    elif isinstance(value, Mapping):
        yield from ((f"{name}.{key}", value[key]) for key in sorted(value, key=str))
    elif isinstance(value, Sequence):
        yield from ((name, part) for part in value)
    elif hasattr(value, "__wrapped__"):  # compiled functions
        yield name, value.__wrapped__
    elif not isinstance(value, ModuleType) and hasattr(value, "__dict__"):
        yield name, vars(value)
