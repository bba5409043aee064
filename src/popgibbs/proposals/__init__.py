"""Proposals, which draw and score the values of a block: users' programs, or built from the model."""

from popgibbs.proposals.along import MovesAlong
from popgibbs.proposals.base import BoundKernel, Kernel, key_for, sites_at
from popgibbs.proposals.components import ComponentDraw, seeds_among
from popgibbs.proposals.conjugate import Conjugate, is_exact
from popgibbs.proposals.counts import Counts
from popgibbs.proposals.enumerated import Enumerated
from popgibbs.proposals.laplace import Laplace
from popgibbs.proposals.mixed import MixedLaplace
from popgibbs.proposals.modes import shape_of
from popgibbs.proposals.nested import NestedLaplace, lower_partition
from popgibbs.proposals.neural import Neural
from popgibbs.proposals.prior import Prior
from popgibbs.proposals.programmed import Programmed, as_kernel
from popgibbs.proposals.relabelling import Shuffled, log_average_over_labellings

__all__ = [
    "as_kernel",
    "BoundKernel",
    "ComponentDraw",
    "Conjugate",
    "Counts",
    "Enumerated",
    "is_exact",
    "Kernel",
    "key_for",
    "Laplace",
    "log_average_over_labellings",
    "lower_partition",
    "MixedLaplace",
    "MovesAlong",
    "NestedLaplace",
    "Neural",
    "Prior",
    "Programmed",
    "seeds_among",
    "shape_of",
    "Shuffled",
    "sites_at",
]
