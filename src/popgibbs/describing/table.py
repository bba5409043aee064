"""A description as a table of blocks, in plain text or HTML."""

from html import escape
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from popgibbs.describing.description import BlockRow, Description

_WIDTH = 116
_COLUMNS = ("block", "proposal and move", "weight", "sees", "numbers", "trained")


def as_text(description: Description) -> str:
    table = Table(*_COLUMNS, box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1), leading=1)
    for column in table.columns[-2:]:
        column.justify, column.no_wrap = "right", True
    for block in description.blocks:
        table.add_row(*(Text(cell) for cell in _cells(block, description)))
    out = StringIO()
    Console(file=out, width=_WIDTH, color_system=None, force_jupyter=False).print(table)
    lines = [*_headlines(description), "", *(line.rstrip() for line in out.getvalue().splitlines())]
    return "\n".join(lines).rstrip()


def as_html(description: Description) -> str:
    heads = "".join(f"<p>{escape(line)}</p>" for line in _headlines(description))
    titles = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    rows = "".join(
        f"<tr>{''.join(f'<td>{_lines(cell)}</td>' for cell in _cells(block, description))}</tr>"
        for block in description.blocks
    )
    image = StringIO()
    description.figure().savefig(image, format="svg")
    drawing = image.getvalue()
    return f"{heads}<table><tr>{titles}</tr>{rows}</table>{drawing[drawing.index('<svg') :]}"


def _headlines(description: Description) -> list[str]:
    observed = [f"{site.name} ~ {site.family}" for site in description.sites if site.observed]
    plates = [f"{plate} {size}" for plate, size in description.plates.items()]
    parts = [
        f"model {description.model}",
        f"observed {', '.join(observed)}" if observed else "nothing observed",
        f"plates {', '.join(plates)}" if plates else "",
        f"{description.num_model_parameters:,} trained parameters" if description.num_model_parameters else "",
    ]
    exchangeable = [
        f"exchangeable {', '.join(sites)}" + (f", labelled by {', '.join(labels)}" if labels else "")
        for sites, labels in description.exchangeable
    ]
    return [" · ".join(part for part in parts if part), f"first draw {description.first_draw}", *exchangeable]


def _cells(block: BlockRow, description: Description) -> list[str]:
    sites = {site.name: site for site in description.sites}
    lines = [f"{name} ~ {sites[name].family}, {sites[name].support}" for name in block.sites]
    title = [] if block.name == ",".join(block.sites) else [f"{block.name}:"]
    seen = [f"given {', '.join(block.given)}"] if block.given else []
    return [
        "\n".join([*title, *lines]),
        f"{block.proposal}\n{block.move}",
        block.weight,
        "\n".join([*seen, *map(str, block.children)]),
        f"{block.num_elements:,} × {block.num_numbers:,}",
        f"{block.num_parameters:,}",
    ]


def _lines(cell: str) -> str:
    return escape(cell).replace("\n", "<br>")
