"""Amortized population Gibbs samplers with neural sufficient statistics, for any NumPyro model."""

from popgibbs import distributions, statistics
from popgibbs.apg import APG, Fit
from popgibbs.distributions import Refined, Successive
from popgibbs.evaluation import Comparison, Method, bootstrapped, compare, hmc_after, tuned
from popgibbs.model import StateSpaceModel
from popgibbs.moves import HMC, Metropolis, Move, MoveInfo, Weigh
from popgibbs.posterior import Posterior
from popgibbs.proposals import Enumerated, Prior
from popgibbs.smc import Block, SequenceBlock, multinomial, residual, stratified, systematic
from popgibbs.statistics import families
from popgibbs.training import CheckpointError, Interrupted, Tempering

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
