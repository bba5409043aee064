"""Write the tables of README.md from docs/results, which `popgibbs reproduce` made."""

import json
import re
from pathlib import Path

from popgibbs.reproduction.pages import settings_table

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"<!-- results: (\w+) -->.*?<!-- end -->", flags=re.DOTALL)


def filled(text: str) -> str:
    """The text with the table of an experiment in every place that is marked for one."""

    def tables(place: re.Match[str]) -> str:
        name = place[1]
        results = json.loads((ROOT / "docs" / "results" / name / "results.json").read_text())
        parts = [
            f"*{setting['label']}, {setting['instances']:,} held-out instances, seed {setting['seed']}:*\n\n"
            + settings_table(setting, results)
            for setting in results["settings"]
        ]
        return "\n\n".join([f"<!-- results: {name} -->", *parts, "<!-- end -->"])

    return PLACE.sub(tables, text)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text()))
