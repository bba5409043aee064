"""What a sampler is made of: a table of its blocks and a graph of its model."""

from popgibbs.describing.description import BlockRow, Description, Seen, SiteRow
from popgibbs.describing.reading import describe

__all__ = [
    "BlockRow",
    "describe",
    "Description",
    "Seen",
    "SiteRow",
]
