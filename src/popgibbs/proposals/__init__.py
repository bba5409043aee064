"""Proposals, which draw and score the values of a block: users' programs, the prior, enumeration, Laplace's method, networks."""

from popgibbs.proposals.base import BoundKernel, Kernel, Sampled, key_for, sites_at
from popgibbs.proposals.enumerated import Enumerated
from popgibbs.proposals.laplace import Laplace
from popgibbs.proposals.neural import Neural
from popgibbs.proposals.prior import Prior
from popgibbs.proposals.programmed import Programmed, as_kernel
from popgibbs.proposals.relabelling import Shuffled, log_average_over_labellings

__all__ = [
    "as_kernel",
    "BoundKernel",
    "Enumerated",
    "Kernel",
    "key_for",
    "Laplace",
    "log_average_over_labellings",
    "Neural",
    "Prior",
    "Programmed",
    "Sampled",
    "Shuffled",
    "sites_at",
]
