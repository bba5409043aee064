"""Amortized population Gibbs samplers with neural sufficient statistics, for any NumPyro model."""

from popgibbs import distributions, families, statistics
from popgibbs.api import APG, Fit
from popgibbs.baselines import bootstrapped, hmc_after, tuned
from popgibbs.blocks import Block, SequenceBlock
from popgibbs.checkpoint import CheckpointError
from popgibbs.comparison import Comparison, Method, compare
from popgibbs.moves import HMC, Metropolis, Move, MoveInfo, Weigh
from popgibbs.posterior import Posterior
from popgibbs.proposals import Enumerated, Prior
from popgibbs.refined import Refined
from popgibbs.resampling import multinomial, residual, stratified, systematic
from popgibbs.signals import Interrupted
from popgibbs.state_space import StateSpaceModel
from popgibbs.successive import Successive
from popgibbs.tempering import Tempering

__version__ = "0.1.0"

__all__ = [
    "APG",
    "Block",
    "CheckpointError",
    "Comparison",
    "Enumerated",
    "Fit",
    "HMC",
    "Interrupted",
    "Method",
    "Metropolis",
    "Move",
    "MoveInfo",
    "Posterior",
    "Prior",
    "Refined",
    "SequenceBlock",
    "StateSpaceModel",
    "Successive",
    "Tempering",
    "Weigh",
    "bootstrapped",
    "compare",
    "distributions",
    "families",
    "hmc_after",
    "multinomial",
    "residual",
    "statistics",
    "stratified",
    "systematic",
    "tuned",
]
