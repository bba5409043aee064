"""How a proposal is corrected: by weight, by acceptance, or by Hamiltonian dynamics in its place."""

from popgibbs.moves.base import Move, MoveInfo, log_ratio, propose, replaced
from popgibbs.moves.hmc import HMC
from popgibbs.moves.metropolis import Metropolis
from popgibbs.moves.weigh import Weigh

__all__ = [
    "HMC",
    "log_ratio",
    "Metropolis",
    "Move",
    "MoveInfo",
    "propose",
    "replaced",
    "Weigh",
]
