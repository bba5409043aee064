"""How a proposal is corrected: by weight, by acceptance, or by Hamiltonian dynamics in its place."""

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
