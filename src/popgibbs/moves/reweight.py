"""Take every proposal, and pay by weight."""

from typing import ClassVar

import jax.numpy as jnp

from popgibbs._typing import Elements
from popgibbs.model import Conditional, Particle
from popgibbs.moves.base import Move, MoveInfo, MoveKeys, propose, replaced
from popgibbs.proposals import BoundKernel


class Reweight(Move):
    """Always take the proposal, and weigh it (the paper, Algorithm 2).

    v = p(x, z'_b, z_-b) q(z_b | x, z_-b) / (p(x, z_b, z_-b) q(z'_b | x, z_-b))
    """

    weighs: ClassVar[bool] = True

    def __call__(
        self, keys: MoveKeys, proposal: BoundKernel | None, conditional: Conditional, particle: Particle
    ) -> tuple[Particle, Elements, MoveInfo]:
        del keys
        values, log_probs, log_v = propose(proposal, conditional, particle)
        info = MoveInfo(values, log_v, accepted=jnp.ones_like(log_v))
        return replaced(particle, values, log_probs), log_v, info
