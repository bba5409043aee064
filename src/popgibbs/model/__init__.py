"""A NumPyro program as a density: its sites, factors and conditionals, and how a weight splits into elements."""

from popgibbs.model.particle import Particle
from popgibbs.model.partition import Partition
from popgibbs.model.program import (
    TRACING,
    Site,
    abstract_sites,
    constrain,
    densities,
    draw,
    evaluate,
    inspect,
    unconstrain,
)
from popgibbs.model.state_space import StateSpaceModel, one_event
from popgibbs.model.steps import INTO_NEXT, AnyConditional, Neighbour, Sequence, StepConditional, shifted
from popgibbs.model.target import Conditional, Summed, Target, by_name, condition, latent_names, total, touched, undrawn

__all__ = [
    "abstract_sites",
    "AnyConditional",
    "by_name",
    "condition",
    "Conditional",
    "constrain",
    "densities",
    "draw",
    "evaluate",
    "inspect",
    "INTO_NEXT",
    "latent_names",
    "Neighbour",
    "one_event",
    "Particle",
    "Partition",
    "Sequence",
    "shifted",
    "Site",
    "StateSpaceModel",
    "StepConditional",
    "Summed",
    "Target",
    "total",
    "touched",
    "TRACING",
    "unconstrain",
    "undrawn",
]
