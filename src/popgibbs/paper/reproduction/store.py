"""Measurements that survive a stop."""

import json
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from popgibbs._files import whole
from popgibbs.training import versions


class Store:
    """Every measurement is a file, written when it is made; asked for again it is read."""

    def __init__(self, directory: Path, setup: Mapping[str, Any]):
        self.directory = directory
        self.setup = json.loads(json.dumps(setup))  # as it will be read back
        path = directory / "setup.json"
        if not path.exists():
            if directory.exists() and any(directory.iterdir()):
                raise ValueError(f"{directory} holds something else; choose another directory")
            write_json(path, self.setup)
        elif (found := read_json(path)) != self.setup:
            differ = sorted(name for name in {*found, *self.setup} if found.get(name) != self.setup.get(name))
            before, now = found.get(differ[0]), self.setup.get(differ[0])
            plain = isinstance(before, str | int) and isinstance(now, str | int)
            told = f"{differ[0]}={before}, now it is {now}" if plain else f"other {differ[0]}"
            raise ValueError(f"{directory} was begun with {told}; choose another directory")

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        """The measurement of that name, made now if it was not before."""
        path = self.directory / "measured" / f"{_plain(name)}.json"
        if not path.exists():
            write_json(path, measure())
        return read_json(path)

    def all(self, name: str) -> dict[str, Any]:
        """The measurements whose names go on after that one, by what they go on with."""
        return {
            path.stem: read_json(path) for path in sorted((self.directory / "measured" / _plain(name)).glob("*.json"))
        }


def _plain(name: str) -> str:
    """A name as one of files: letters, digits and dashes, in folders."""
    return "".join(c if c.isalnum() or c == "/" else "-" for c in name.lower().replace("·", "").replace(", ", " "))


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as partial:
        partial.write_text(json.dumps(value, indent=1) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError:
        raise ValueError(f"{path} is not JSON; delete it, and it is measured again") from None


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions(),
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
