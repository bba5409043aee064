"""A NumPyro program as a density: its sites, factors and conditionals, and the split of a weight into elements."""

from popgibbs.model.components import Components, Exchangeable, exchangeable
from popgibbs.model.conditionals import BlockConditional, Conditional, ProposalData, Summed, condition
from popgibbs.model.coordinates import Coordinates
from popgibbs.model.joint import JointValues, places_in_element
from popgibbs.model.noncentred import NonCentredConditional, non_centred
from popgibbs.model.particle import Particle
from popgibbs.model.partition import Partition, shared_plates
from popgibbs.model.program import (
    TRACING,
    AbstractSite,
    Program,
    Site,
    abstract_sites,
    centre_and_scale,
    constrain,
    densities,
    draw,
    evaluate,
    family,
    inspect,
    raw_sites,
    rescale,
    simulate,
    simulates,
    standardise,
    typical_sites,
    unconstrain,
)
from popgibbs.model.soft import SoftConditional, responsibilities
from popgibbs.model.state_space import TIME, StateSpaceModel, one_event
from popgibbs.model.steps import INTO_NEXT, Neighbour, StepConditional, StepSequence, shifted
from popgibbs.model.target import Target, by_name, constant, entry_mask, latent_names, total, touched, undrawn

__all__ = [
    "abstract_sites",
    "AbstractSite",
    "BlockConditional",
    "by_name",
    "centre_and_scale",
    "Components",
    "condition",
    "Conditional",
    "Coordinates",
    "constant",
    "constrain",
    "densities",
    "draw",
    "entry_mask",
    "evaluate",
    "Exchangeable",
    "exchangeable",
    "family",
    "inspect",
    "INTO_NEXT",
    "JointValues",
    "latent_names",
    "Neighbour",
    "non_centred",
    "NonCentredConditional",
    "one_event",
    "Particle",
    "Partition",
    "places_in_element",
    "Program",
    "ProposalData",
    "raw_sites",
    "responsibilities",
    "rescale",
    "shared_plates",
    "shifted",
    "simulate",
    "simulates",
    "Site",
    "SoftConditional",
    "standardise",
    "StateSpaceModel",
    "StepConditional",
    "StepSequence",
    "Summed",
    "Target",
    "TIME",
    "total",
    "touched",
    "TRACING",
    "typical_sites",
    "unconstrain",
    "undrawn",
]
