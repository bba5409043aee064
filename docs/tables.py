"""Write the tables of the README and of the pages about experiments from docs/results, which `popgibbs reproduce` made.

A table stands between the comment `results: ...` and the comment `end`:

- `results: overview`: a few rows of all experiments, for the README;
- `results: NAME`: one table per setting of an experiment;
- `results: NAME NUMBER`: one number of an experiment in all its settings;
- `results: waiting`: the seconds that users wait, from `benchmarks/waiting.json`.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from popgibbs.paper.reproduction.pages import heading, markdown, overview_table, settings_table, with_error

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "docs" / "explanation"
PAGES = (
    ROOT / "README.md",
    EXPERIMENTS / "gaussian-mixture.md",
    EXPERIMENTS / "deep-mixture.md",
    EXPERIMENTS / "bouncing-digits.md",
    EXPERIMENTS / "performance.md",
)
PLACE = re.compile(r"<!-- results: (\w+)( \w+)? -->.*?<!-- end -->", flags=re.DOTALL)

# The rows of the overview: a label, and the experiment, setting, method and number that it shows.
OVERVIEW = (
    ("Gaussian mixture, APG: log joint", "gmm", "100 points", "APG", "log_joint"),
    ("Gaussian mixture, RWS", "gmm", "100 points", "RWS", "log_joint"),
    ("Gaussian mixture, Gibbs", "gmm", "100 points", "Gibbs", "log_joint"),
    ("Deep mixture, APG: log joint", "dmm", "600 points", "APG", "log_joint"),
    ("3 digits, 20 frames, APG: squared error", "bmnist", "3 digits, 20 frames", "APG", "squared_error"),
    ("5 digits, 100 frames, APG", "bmnist", "5 digits, 100 frames", "APG", "squared_error"),
    ("5 digits, 100 frames, RWS", "bmnist", "5 digits, 100 frames", "RWS", "squared_error"),
)


def filled(text: str) -> str:
    """The text with its tables written anew."""

    def tables(place: re.Match[str]) -> str:
        name, number = place[1], (place[2] or "").strip()
        if name == "overview":
            parts = [_overview()]
        elif name == "waiting":
            parts = [_waiting()]
        elif number:
            parts = [overview_table(_results(name), number)]
        else:
            results = _results(name)
            parts = [
                f"*{heading(setting)}, seed {setting['seed']}:*\n\n{settings_table(setting, results)}"
                for setting in results["settings"]
            ]
        return "\n\n".join([place[0].split("\n")[0], *parts, "<!-- end -->"])

    return PLACE.sub(tables, text)


def _results(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "docs" / "results" / name / "results.json").read_text())


def _overview() -> str:
    """The rows of `OVERVIEW`: the paper's number, ours, and the limit."""
    rows = []
    for label, name, of_setting, method, number in OVERVIEW:
        results = _results(name)
        (setting,) = [setting for setting in results["settings"] if setting["label"] == of_setting]
        reported = results["paper"].get(number, {}).get(of_setting, {}).get(method)
        rows.append(
            {
                "": label,
                "paper": "" if reported is None else f"{reported:,.1f}",
                "popgibbs": with_error(setting["methods"][method][number]),
                "limit": _limit(results, setting, number),
            }
        )
    return markdown(["", "paper", "popgibbs", "limit"], rows)


def _waiting() -> str:
    """The seconds, and compilations in brackets, of everything that `benchmarks/waiting.py` times."""
    results = json.loads((ROOT / "benchmarks" / "waiting.json").read_text())
    columns = {f"{label}, {part}": (label, part) for part in ("cold", "cached") for label in results}
    steps = list(next(iter(results.values()))["cold"]["seconds"])
    # The walk begins with these three, which together lead to the first posterior.
    start = steps[: steps.index(next(step for step in steps if step.startswith("first posterior"))) + 1]

    def cell(step: str, label: str, part: str) -> str:
        seconds, count = results[label][part]["seconds"][step], results[label][part]["compilations"][step]
        return f"{seconds:.2f} ({count})" if count else f"{seconds:.2f}"

    rows = [{"": step, **{column: cell(step, *place) for column, place in columns.items()}} for step in steps]
    together = {
        column: f"**{sum(results[label][part]['seconds'][step] for step in start):.2f}**"
        for column, (label, part) in columns.items()
    }
    rows.insert(len(start), {"": "**from import to that posterior**", **together})
    for command in (name for name in next(iter(results.values())) if name not in ("cold", "filling the cache", "cached")):
        rows.append({"": f"`{command}`", **{f"{label}, cold": f"{results[label][command]:.2f}" for label in results}})
    return markdown(["", *columns], rows)


def _limit(results: Mapping[str, Any], setting: Mapping[str, Any], number: str) -> str:
    if number == "log_joint" and setting["limit"] is not None:
        return with_error(setting["limit"])
    known = results["limits"].get(number, {})
    return f"about {known[setting['label']]:g}" if setting["label"] in known else ""


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path.read_text()))
