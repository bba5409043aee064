"""Amortized population Gibbs samplers with neural sufficient statistics, for any NumPyro model."""

from popgibbs import distributions, statistics
from popgibbs.apg import APG, Fit
from popgibbs.distributions import Autoregressive, RefinedGuess
from popgibbs.evaluation import Comparison, Method, compare, hmc_rws, tune_step_size, with_prior_proposals
from popgibbs.model import StateSpaceModel
from popgibbs.moves import HMC, Metropolis, Move, MoveInfo, Reweight
from popgibbs.posterior import Posterior
from popgibbs.proposals import BoundKernel, Enumerated, Kernel, Prior
from popgibbs.smc import Block, SequenceBlock, multinomial, residual, stratified, systematic
from popgibbs.statistics import families
from popgibbs.training import CheckpointError, Interrupted, Tempering

__version__ = "0.1.0"

__all__ = [
    "APG",
    "Block",
    "BoundKernel",
    "CheckpointError",
    "Comparison",
    "Enumerated",
    "Fit",
    "HMC",
    "Interrupted",
    "Kernel",
    "Method",
    "Metropolis",
    "Move",
    "MoveInfo",
    "Posterior",
    "Prior",
    "RefinedGuess",
    "SequenceBlock",
    "StateSpaceModel",
    "Autoregressive",
    "Tempering",
    "Reweight",
    "with_prior_proposals",
    "compare",
    "distributions",
    "families",
    "hmc_rws",
    "multinomial",
    "residual",
    "statistics",
    "stratified",
    "systematic",
    "tune_step_size",
]
