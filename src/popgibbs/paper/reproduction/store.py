"""A resumable on-disk cache of measurements."""

import json
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from popgibbs._files import whole
from popgibbs.training import versions


class Store:
    """One file per measurement, written when it is made and read when it is needed again.

    `setup` describes everything that the measurements depend on; a directory that was started with a different one is
    refused.
    """

    def __init__(self, directory: Path, setup: Mapping[str, Any]):
        self.directory = directory
        self.setup = json.loads(json.dumps(setup))  # as it will be read back
        path = directory / "setup.json"
        if not path.exists():
            if directory.exists() and any(directory.iterdir()):
                raise ValueError(f"{directory} holds other files; choose another directory")
            write_json(path, self.setup)
        elif (found := read_json(path)) != self.setup:
            differ = sorted(name for name in {*found, *self.setup} if found.get(name) != self.setup.get(name))
            before, now = found.get(differ[0]), self.setup.get(differ[0])
            plain = isinstance(before, str | int) and isinstance(now, str | int)
            change = f"{differ[0]}={before}, now it is {now}" if plain else f"different {differ[0]}"
            raise ValueError(f"{directory} was started with {change}; choose another directory")

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        """The measurement of that name, made now if there is none."""
        path = self.directory / "measured" / f"{_plain(name)}.json"
        if not path.exists():
            write_json(path, measure())
        return read_json(path)

    def all(self, name: str) -> dict[str, Any]:
        """All measurements below a name, by the rest of their names."""
        return {
            path.stem: read_json(path) for path in sorted((self.directory / "measured" / _plain(name)).glob("*.json"))
        }


def _plain(name: str) -> str:
    """A name as a path: letters, digits and dashes, with slashes between folders."""
    return "".join(c if c.isalnum() or c == "/" else "-" for c in name.lower().replace("·", "").replace(", ", " "))


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as partial:
        partial.write_text(json.dumps(value, indent=1) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError:
        raise ValueError(f"{path} is not JSON; delete it to measure it again") from None


def machine() -> dict[str, Any]:
    """The machine and the versions that the numbers were measured with."""
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
