"""Take every proposal, and pay by weight."""

import jax.numpy as jnp

from popgibbs._typing import Elements, PRNGKey
from popgibbs.model import AnyConditional, Particle
from popgibbs.moves.base import Move, MoveInfo, propose, replaced
from popgibbs.proposals import Kernel


class Weigh(Move):
    """Always take the proposal, and weigh it (the paper, Algorithm 1).

    v = p(x, z'_b, z_-b) q(z_b | x, z_-b) / (p(x, z_b, z_-b) q(z'_b | x, z_-b))
    """

    def __call__(
        self,
        key_draw: PRNGKey,
        key_accept: PRNGKey,
        kernel: Kernel | None,
        conditional: AnyConditional,
        particle: Particle,
    ) -> tuple[Particle, Elements, MoveInfo]:
        del key_accept
        values, log_probs, log_v = propose(key_draw, kernel, conditional, particle)
        info = MoveInfo(values, log_v, accepted=jnp.ones_like(log_v))
        return replaced(particle, values, log_probs), log_v, info
