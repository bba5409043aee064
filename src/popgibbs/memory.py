"""How much memory there is, to which files must fit that may declare anything."""

import math
import os


def memory_bytes() -> float:
    """The memory of this machine, or infinity where the system does not tell."""
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) if hasattr(os, "sysconf") else math.inf
