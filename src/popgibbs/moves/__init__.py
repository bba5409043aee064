"""Moves: correct a proposal by reweighting or acceptance, or replace it by Gibbs sampling or Hamiltonian Monte Carlo."""

from popgibbs.moves.base import Move, MoveInfo, MoveKeys, log_ratio, propose, replaced
from popgibbs.moves.gibbs import Gibbs
from popgibbs.moves.hmc import HMC
from popgibbs.moves.metropolis import Metropolis
from popgibbs.moves.reweight import Reweight

__all__ = [
    "Gibbs",
    "HMC",
    "log_ratio",
    "Metropolis",
    "Move",
    "MoveInfo",
    "MoveKeys",
    "propose",
    "replaced",
    "Reweight",
]
