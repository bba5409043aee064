"""Results as Markdown: tables with our numbers next to the paper's and the limits."""

from collections.abc import Mapping, Sequence
from typing import Any

from popgibbs.paper.study import label_of

LABELS = {"log_joint": "log joint", "squared_error": "squared error a frame"}


def page(results: Mapping[str, Any]) -> str:
    """The whole page about a reproduction."""
    parts = [f"# {results['experiment']}, preset {results['preset']}", _about(results)]
    if len(results["settings"]) > 1:
        for number in _numbers(results["settings"][0]):
            parts += [f"## {LABELS[number].capitalize()}", overview_table(results, number)]
    for setting in results["settings"]:
        parts += [
            f"## {heading(setting)}",
            settings_table(setting, results),
            *_failures(setting),
            *_orders(setting, results),
        ]
    if "fixed_budget" in results:
        parts += [_budget_title(results["fixed_budget"]), budget_table(results["fixed_budget"])]
    if "learning" in results:
        parts += [f"## {results['learning']['measure']} during training", learning_table(results["learning"])]
    if results["figures"]:
        parts += ["## Figures", "\n".join(f"![{name}]({name})" for name in results["figures"])]
    return "\n\n".join(parts) + "\n"


def heading(setting: Mapping[str, Any]) -> str:
    return f"{setting['label']}, {setting['instances']:,} held-out instances"


def _numbers(setting: Mapping[str, Any]) -> list[str]:
    """The numbers that were measured for every method."""
    return [name for name in LABELS if name in next(iter(setting["methods"].values()))]


def overview_table(results: Mapping[str, Any], number: str) -> str:
    """One number in all settings, with the paper's in brackets: one row per method, the first also at earlier sweeps."""
    settings, reported = results["settings"], results["paper"].get(number, {})
    rows: dict[str, dict[str, str]] = {}
    for setting in settings:
        column, first = heading(setting), next(iter(setting["methods"]))
        found = {
            **{f"{first}, K={k}": setting["methods"][first][number]["by_sweep"][k - 1] for k in results["shown_ks"]},
            **{label: method[number] for label, method in setting["methods"].items()},
        }
        for label, entry in found.items():
            theirs = reported.get(setting["label"], {}).get(label)
            behind = "" if theirs is None else f" ({theirs:,.1f})"
            rows.setdefault(label, {"": label})[column] = with_error(entry) + behind
        if limit := _limits(setting, results["limits"]).get(LABELS[number]):
            rows.setdefault("limit", {"": "limit"})[column] = limit
    columns = [heading(setting) for setting in settings]
    listed = sorted(rows.values(), key=lambda row: row[""] == "limit")
    return markdown(["", *columns], listed) + "\n\nIn brackets, what the paper reports."


def settings_table(setting: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """One row per method, the first also at earlier sweeps."""
    methods = setting["methods"]
    first = next(iter(methods))
    numbers = _numbers(setting)
    rows: list[dict[str, str]] = []
    for label, method in methods.items():
        for k in results["shown_ks"] if label == first else ():
            rows.append(
                {
                    "": f"{label}, K={k}",
                    **_spent(k, method["L"], method["evaluations"] * k // method["K"]),
                    **{LABELS[name]: with_error(method[name]["by_sweep"][k - 1]) for name in numbers},
                }
            )
        rows.append(
            {
                "": label,
                **_spent(method["K"], method["L"], method["evaluations"]),
                **{LABELS[name]: with_error(method[name]) for name in numbers},
                f"behind {first}": "" if label == first else with_error(method["behind"]),
                "ESS/L": f"{method['ess_share']:.2f}",
                "acceptance": f"{method['acceptance']:.2f}",
            }
        )
    for row in rows:
        row |= _reported(row[""], setting["label"], results["paper"])
    if limits := _limits(setting, results["limits"]):
        rows.append({"": "limit", **limits})
    columns = ["", "K × L", "evaluations"]
    for name in numbers:
        columns += [LABELS[name], f"{LABELS[name]}, paper"]
    return markdown([*columns, f"behind {first}", "ESS/L", "acceptance"], rows)


def _spent(k: int, particles: int, evaluations: int) -> dict[str, str]:
    return {"K × L": f"{k} × {particles}", "evaluations": f"{evaluations:,}"}


def _reported(label: str, setting: str, paper: Mapping[str, Any]) -> dict[str, str]:
    """The paper's numbers for a row."""
    found = {name: by_setting.get(setting, {}).get(label) for name, by_setting in paper.items()}
    return {f"{LABELS[name]}, paper": f"{value:,.1f}" for name, value in found.items() if value is not None}


def _limits(setting: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, str]:
    known = {LABELS[name]: f"about {by[setting['label']]:g}" for name, by in limits.items() if setting["label"] in by}
    return known if setting["limit"] is None else {**known, LABELS["log_joint"]: with_error(setting["limit"])}


def _failures(setting: Mapping[str, Any]) -> list[str]:
    failed = [f"{label} on {row['failed']} instances" for label, row in setting["methods"].items() if row["failed"]]
    return [f"All particles lost their weight, so these numbers mean nothing: {', '.join(failed)}."] if failed else []


def _orders(setting: Mapping[str, Any], results: Mapping[str, Any]) -> list[str]:
    """The order of the methods here and in the paper, and the known reasons where they differ."""
    reported = results["paper"].get("log_joint", {}).get(setting["label"], {})
    methods = setting["methods"]
    ours = sorted(
        (label for label in methods if label in reported), key=lambda label: -methods[label]["log_joint"]["mean"]
    )
    if not ours:
        return []
    theirs = sorted(ours, key=lambda label: -reported[label])
    text = [f"By log joint, best first: {' > '.join(ours)}.", f"The paper's order: {' > '.join(theirs)}."]
    turned = [
        label
        for place, label in enumerate(ours)
        if {*ours[:place]} != {*theirs[: theirs.index(label)]} and label in results["reasons"]
    ]
    text += [f"{label} differs: {results['reasons'][label]}." for label in turned]
    return ["\n".join(text)]


def _budget_title(budget: Mapping[str, Any]) -> str:
    return f"## Block strategies at K·L={budget['budget']}, {budget['instances']} instances"


def budget_table(budget: Mapping[str, Any]) -> str:
    rows = []
    for k in next(iter(budget["strategies"].values())):
        row = {"K × L": f"{k} × {budget['budget'] // int(k)}"}
        for strategy, by_k in budget["strategies"].items():
            row[f"log joint, {strategy}"] = with_error(by_k[k]["log_joint"])
            row[f"ESS/L, {strategy}"] = with_error(by_k[k]["ess_share"], 3)
        rows.append(row)
    return markdown(list(rows[0]), rows)


def learning_table(learning: Mapping[str, Any]) -> str:
    by_k = learning["by_k"]
    steps = next(iter(by_k.values()))
    rows = [
        {"step": f"{int(step):,}", **{f"K={k}": _rough(curve[step]) for k, curve in by_k.items() if step in curve}}
        for step in steps
    ]
    return markdown(["step", *(f"K={k}" for k in by_k)], rows)


def with_error(entry: Mapping[str, float], digits: int = 1) -> str:
    return f"{entry['mean']:,.{digits}f} ± {entry['se']:,.{digits}f}"


def _rough(entry: Mapping[str, float]) -> str:
    """With few digits, for numbers that span orders of magnitude."""
    return f"{entry['mean']:.2g} ± {entry['se']:.1g}"


def markdown(columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> str:
    """A table; columns that a row lacks are left empty."""
    lines = [columns, ["---", *["--:"] * (len(columns) - 1)], *([row.get(name, "") for name in columns] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _about(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    lines = [
        f"Seed {results['seed']}, on {machine['cores']} cores ({machine['processor']}), "
        + ", ".join(f"{package} {number}" for package, number in machine["versions"].items())
        + ".",
        "Samplers: " + "; ".join(_sampler(variant, about) for variant, about in results["samplers"].items()) + ".",
    ]
    if results["scaled_down"]:
        lines.append(f"Scaled down: {results['scaled_down']}.")
    return "\n".join(lines)


def _sampler(variant: str, about: Mapping[str, Any]) -> str:
    return f"`{variant}` trained for {about['step']:,} steps on instances of {label_of(about['size'])}"
