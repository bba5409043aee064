"""The algorithm: weights, resampling, populations, blocks, sweeps."""

from popgibbs.smc.block import Block
from popgibbs.smc.bridge import Bridge
from popgibbs.smc.built import BuiltSampler
from popgibbs.smc.context import Context, Plan
from popgibbs.smc.events import BlockEvent, Event, Terms, has_arrays
from popgibbs.smc.initial import InitialEvent, draw_initial, initial_plan, initialise, score_initial
from popgibbs.smc.noncentred_block import NonCentredBlock, scaled_by
from popgibbs.smc.population import Population
from popgibbs.smc.resampling import multinomial, residual, stratified, systematic
from popgibbs.smc.rows import over_populations, over_rows
from popgibbs.smc.sequence_block import SequenceBlock
from popgibbs.smc.sequences import SequenceEvent
from popgibbs.smc.staleness import disagreement
from popgibbs.smc.sweep import Info, run, sweep_on, update
from popgibbs.smc.weights import degenerate, ess, ess_fraction, log_mean_exp, normalise, proper, weighted_sum

__all__ = [
    "Block",
    "BlockEvent",
    "Bridge",
    "BuiltSampler",
    "Context",
    "degenerate",
    "disagreement",
    "draw_initial",
    "ess",
    "ess_fraction",
    "Event",
    "has_arrays",
    "Info",
    "initial_plan",
    "InitialEvent",
    "initialise",
    "log_mean_exp",
    "multinomial",
    "NonCentredBlock",
    "normalise",
    "over_populations",
    "over_rows",
    "Plan",
    "Population",
    "proper",
    "residual",
    "run",
    "scaled_by",
    "score_initial",
    "SequenceBlock",
    "SequenceEvent",
    "stratified",
    "sweep_on",
    "systematic",
    "Terms",
    "update",
    "weighted_sum",
]
