"""The table of the gallery, from the measurements of its stages."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The share of numbers whose interval covers them, errors in reference standard deviations, nats, seconds.
_COVERAGE, _RMS, _SD_RATIO, _EVIDENCE, _TRAINING, _FIRST = (0.87, 0.93), 0.15, (0.95, 1.05), 0.3, 300.0, 30.0
# The mixture: nats behind hand-written proposals, and times as long a sweep may take. The deep mixture: log joint.
_AHEAD, _SWEEP_RATIO, _DEEP = -1.0, 3.0, -200.0
_PUBLISHED_ERROR, _PUBLISHED_SD, _PUBLISHED_DRAWS = 0.07, (0.92, 1.08), 5_000


def write(
    path: Path,
    results: Sequence[dict[str, Any]],
    published: Sequence[dict[str, Any]],
    paper: Sequence[dict[str, Any]],
    cores: int,
) -> None:
    """Write the tables as Markdown, and what they were made from as JSON next to them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown(results, published, paper, cores))
    found = {"gallery": results, "published": published, "paper": paper}
    path.with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n")


def markdown(
    results: Sequence[dict[str, Any]],
    published: Sequence[dict[str, Any]],
    paper: Sequence[dict[str, Any]],
    cores: int,
) -> str:
    """The page; numbers that miss their threshold are bold."""
    lines = ["# Gallery", "", "Samplers of the models in `examples/`, built from the model alone (`make gallery`).", ""]
    if results:
        settings = results[0]["settings"]
        lines += [
            f"{settings['num_populations']} populations of {settings['num_particles']} particles, "
            f"K={settings['num_sweeps'] + 1}. Coverage of 90% intervals over {settings['instances']} simulated "
            f"instances, the rest over {settings['compared']}. Errors are in standard deviations of the reference, "
            f"evidence in nats, times in seconds on {cores} cores. Bold numbers miss the threshold.",
            "",
            "| model | sampler | coverage | rms error of means | sd ratio | evidence, rms | training | first summary |",
            "|---|---|--:|--:|--:|--:|--:|--:|",
            f"| *threshold* | | {_range(_COVERAGE)} | {_RMS} | {_range(_SD_RATIO)} | {_EVIDENCE} | {_TRAINING:.0f} "
            f"| {_FIRST:.0f} |",
            *(_row(result) for result in results),
            "",
        ]
        firsts = [r["seconds_to_first_summary"] for r in results if "seconds_to_first_summary" in r]
        if firsts:
            lines += [f"Slowest first training-free summary, from import on a cold cache: {max(firsts):.0f} s.", ""]
        flagged = [f"{r['name']} ({r['num_unreliable']})" for r in results if r["num_unreliable"]]
        if flagged:
            lines += [f"Left out, because the reference did not converge: {', '.join(dict.fromkeys(flagged))}.", ""]
    if paper:
        lines += [
            "## The paper's models",
            "",
            "Training-free samplers beside the trained ones of the package, whose proposals are written by hand: log "
            "joints on the same instances with one population, and the time of a sweep. The decoder of the deep mixture "
            f"is that of the package. Thresholds: the mixture at most {-_AHEAD:.0f} nat behind and {_SWEEP_RATIO:.0f} "
            f"times as slow, the deep mixture above {_DEEP:.0f}.",
            "",
            "| model | instances | K × L | built from the model | by hand | difference | time of a sweep |",
            "|---|--:|--:|--:|--:|--:|--:|",
            *(_row_of_paper(row) for row in paper),
            "",
        ]
    if published:
        lines += [
            "## Published posteriors",
            "",
            "Training-free samplers on real data against the draws of posteriordb; the worst parameter of each.",
            "",
            "| posterior | error of means | sd ratio | effective draws |",
            "|---|--:|--:|--:|",
            f"| *threshold* | {_PUBLISHED_ERROR} | {_range(_PUBLISHED_SD)} | {_PUBLISHED_DRAWS:,} |",
        ]
        for row in published:
            error = _marked(f"{row['error']:.3f}", row["error"] <= _PUBLISHED_ERROR)
            ratio = _marked(f"{row['sd_ratio']:.3f}", _PUBLISHED_SD[0] <= row["sd_ratio"] <= _PUBLISHED_SD[1])
            draws = _marked(f"{row['effective']:,.0f}", row["effective"] >= _PUBLISHED_DRAWS)
            lines.append(f"| {row['name']} | {error} | {ratio} | {draws} |")
        lines.append("")
    return "\n".join(lines)


def _row(result: dict[str, Any]) -> str:
    covered, rms, ratio = result["coverage"]["all"], result["rms"]["all"], result["sd_ratio"]["all"]
    cells = [
        result["name"].replace("_", " "),
        result["stage"],
        _marked(f"{covered:.3f}", _COVERAGE[0] <= covered <= _COVERAGE[1]),
        _marked(f"{rms:.3f}", rms < _RMS),
        _marked(f"{ratio:.3f}", _SD_RATIO[0] <= ratio <= _SD_RATIO[1]),
        _at_most(result, "evidence_rms", _EVIDENCE, 2),
        _at_most(result, "seconds_training", _TRAINING, 0),
        _at_most(result, "seconds_to_first_summary", _FIRST, 0),
    ]
    return f"| {' | '.join(cells)} |"


def _row_of_paper(row: dict[str, Any]) -> str:
    settings, joint = row["settings"], row["log_joint"]
    difference, ratio = f"{row['ahead']:.2f} ± {row['ahead_se']:.2f}", row["sweep_ratio"]
    is_deep = row["name"] == "deep_mixture"
    cells = [
        row["name"].replace("_", " "),
        f"{settings['num_instances']} of {settings['num_points']} points",
        f"{settings['num_sweeps'] + 1} × {settings['num_particles']}",
        _marked(f"{joint['built']:.1f}", not is_deep or joint["built"] > _DEEP),
        f"{joint['by hand']:.1f}",
        _marked(difference, is_deep or row["ahead"] >= _AHEAD),
        "" if ratio is None else _marked(f"{ratio:.1f} ×", ratio <= _SWEEP_RATIO),
    ]
    return f"| {' | '.join(cells)} |"


def _at_most(result: dict[str, Any], name: str, threshold: float, digits: int) -> str:
    value = result.get(name)
    return "" if value is None else _marked(f"{value:.{digits}f}", value <= threshold)


def _marked(text: str, met: bool) -> str:
    return text if met else f"**{text}**"


def _range(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]} to {bounds[1]}"
