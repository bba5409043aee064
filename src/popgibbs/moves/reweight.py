"""The move of the paper: accept every proposal and reweight."""

from typing import ClassVar

import jax.numpy as jnp

from popgibbs._typing import Elements
from popgibbs.model import Conditional, Particle
from popgibbs.moves.base import Move, MoveInfo, MoveKeys, propose, replaced
from popgibbs.proposals import BoundKernel


class Reweight(Move):
    """Accept every proposal and multiply the weight by v (Algorithm 2 of Wu et al. 2020).

        v = p(x, z'_b, z_-b) q(z_b | x, z_-b) / (p(x, z_b, z_-b) q(z'_b | x, z_-b))

    The evidence stays unbiased if the proposal has the same support as the conditional p(z_b | x, z_-b).

    Examples:
        >>> pg.Block("mu", proposal=Location(), move=pg.Reweight()).move
        Reweight()
    """

    weighs: ClassVar[bool] = True

    def __call__(
        self, keys: MoveKeys, proposal: BoundKernel | None, conditional: Conditional, particle: Particle
    ) -> tuple[Particle, Elements, MoveInfo]:
        del keys
        values, log_probs, log_v = propose(proposal, conditional, particle)
        info = MoveInfo(values, log_v, accepted=jnp.ones_like(log_v))
        return replaced(particle, values, log_probs), log_v, info
