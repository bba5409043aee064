"""The colours of a graph."""

OBSERVED = "#c8c8c8"
# Light tints of Okabe and Ito's palette, which people with colour blindness can tell apart.
_TINTS = ("#9ecbe9", "#f7cf85", "#8fd6bd", "#eebfd8", "#f2b48c", "#b8b5e3", "#f4ec8f", "#c9dba5")


def colour(block: int) -> str:
    """The colour of a block, by its place in the sweep."""
    return _TINTS[block % len(_TINTS)]
