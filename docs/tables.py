"""Write the tables of README.md from docs/results, which `popgibbs reproduce` made."""

import json
import re
from pathlib import Path

from popgibbs.paper.reproduction.pages import heading, overview_table, settings_table

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"<!-- results: (\w+)( \w+)? -->.*?<!-- end -->", flags=re.DOTALL)


def filled(text: str) -> str:
    """The text with the tables of an experiment in every place that is marked for them.

    `results: NAME` stands for a table a setting, `results: NAME NUMBER` for one of that number in all settings.
    """

    def tables(place: re.Match[str]) -> str:
        name, number = place[1], (place[2] or "").strip()
        results = json.loads((ROOT / "docs" / "results" / name / "results.json").read_text())
        if number:
            parts = [overview_table(results, number)]
        else:
            parts = [
                f"*{heading(setting)}, seed {setting['seed']}:*\n\n{settings_table(setting, results)}"
                for setting in results["settings"]
            ]
        return "\n\n".join([place[0].split("\n")[0], *parts, "<!-- end -->"])

    return PLACE.sub(tables, text)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text()))
