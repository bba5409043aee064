"""The graph of a model in Mermaid's language."""

from collections.abc import Mapping, Sequence
from typing import Any

from popgibbs.describing.colours import OBSERVED, colour


def flowchart(sites: Sequence[Any], plates: Mapping[str, int], blocks: Sequence[tuple[str, ...]]) -> str:
    """Sites as nodes in the colours of their blocks, plates as subgraphs, edges from parent to child."""
    number = {site.name: i for i, site in enumerate(sites)}
    groups = sorted({frozenset(site.plates) for site in sites}, key=lambda group: (len(group), sorted(group)))
    lines = ["flowchart TD"]

    def write(group: frozenset[str], above: frozenset[str], indent: str) -> None:
        label = " × ".join(f"{plate} {plates[plate]}" for plate in plates if plate in group - above)
        if group:
            lines.append(f'{indent}subgraph g{groups.index(group)}["{label}"]')
        inner = indent + "  " * bool(group)
        for site in sites:
            if frozenset(site.plates) == group:
                lines.append(f'{inner}s{number[site.name]}(["{site.name}"])')
        for other in groups:
            if other != group and _enclosing(other, groups) == group:
                write(other, group, inner)
        if group:
            lines.append(f"{indent}end")

    write(frozenset(), frozenset(), "  ")
    for site in sites:
        parents = [*site.parents, *([site.name] if site.follows_itself else [])]
        lines += [f"  s{number[parent]} --> s{number[site.name]}" for parent in parents]
    for site in sites:
        block = next((i for i, names in enumerate(blocks) if site.name in names), None)
        fill = OBSERVED if block is None else colour(block)
        lines.append(f"  style s{number[site.name]} fill:{fill},stroke:#444,color:#111")
    return "\n".join(lines)


def _enclosing(group: frozenset[str], groups: list[frozenset[str]]) -> frozenset[str]:
    """The largest group of plates inside another, if it contains all the others; a subgraph has one parent only."""
    inside = [other for other in groups if other < group]
    largest = max(inside, key=len, default=frozenset())
    return largest if all(other <= largest for other in inside) else frozenset()
