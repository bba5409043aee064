"""The algorithm: weights, resampling, populations, blocks, sweeps."""

from popgibbs.smc.blocks import Block, SequenceBlock
from popgibbs.smc.population import Population
from popgibbs.smc.resampling import multinomial, residual, stratified, systematic
from popgibbs.smc.sampler import (
    Event,
    Info,
    Sampler,
    draw_initial,
    go_on,
    initial_plan,
    initialise,
    over_populations,
    over_rows,
    run,
    score_initial,
    update,
)
from popgibbs.smc.sequences import Walk, at_step, draw_first, score_first, score_walk
from popgibbs.smc.staleness import disagreement
from popgibbs.smc.weights import degenerate, effective_share, ess, log_mean_exp, normalise, proper, weighted_sum

__all__ = [
    "at_step",
    "Block",
    "degenerate",
    "disagreement",
    "draw_first",
    "draw_initial",
    "effective_share",
    "ess",
    "Event",
    "go_on",
    "Info",
    "initial_plan",
    "initialise",
    "log_mean_exp",
    "multinomial",
    "normalise",
    "over_populations",
    "over_rows",
    "Population",
    "proper",
    "residual",
    "run",
    "Sampler",
    "score_first",
    "score_initial",
    "score_walk",
    "SequenceBlock",
    "stratified",
    "systematic",
    "update",
    "Walk",
    "weighted_sum",
]
