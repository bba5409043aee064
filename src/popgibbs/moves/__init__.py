"""Moves: correct a proposal by reweighting or by acceptance, or replace it by Hamiltonian Monte Carlo."""

from popgibbs.moves.base import Move, MoveInfo, MoveKeys, log_ratio, propose, replaced
from popgibbs.moves.hmc import HMC
from popgibbs.moves.metropolis import Metropolis
from popgibbs.moves.reweight import Reweight

__all__ = [
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
