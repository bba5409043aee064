"""Accept or reject a proposal, element by element."""

import jax
import jax.numpy as jnp

from popgibbs._random import unrolled
from popgibbs._typing import Elements
from popgibbs.model import Conditional, Particle
from popgibbs.moves.base import Move, MoveInfo, MoveKeys, propose, replaced
from popgibbs.proposals import BoundKernel


class Metropolis(Move):
    """Accept the proposal with probability min(1, v), where v is the incremental weight of `Reweight`.

    Where v = Π_e v_e over the elements of a plate, each element is accepted or rejected separately. The move leaves
    p(z_b | x, z_-b) invariant, so the weight does not change, and the proposal only has to cover its support.

    Examples:
        >>> pg.Block("mu", proposal=pg.Prior(), move=pg.Metropolis()).move
        Metropolis()
    """

    def __call__(
        self, keys: MoveKeys, proposal: BoundKernel | None, conditional: Conditional, particle: Particle
    ) -> tuple[Particle, Elements, MoveInfo]:
        values, log_probs, log_v = propose(proposal, conditional, particle)
        # From a state of density zero, accept any state of positive density.
        old_log_probs = {name: particle.log_probs[name] for name in log_probs}
        escapes = (conditional.reduce(old_log_probs) == -jnp.inf) & (conditional.reduce(log_probs) > -jnp.inf)
        accepted = (jnp.log(jax.random.uniform(unrolled(keys.accept), log_v.shape)) < log_v) | escapes
        old_values = {name: particle.latents[name] for name in values}
        moved = replaced(
            particle,
            conditional.accept(accepted, values, old_values, log_probs=False),
            conditional.accept(accepted, log_probs, old_log_probs, log_probs=True),
        )
        info = MoveInfo(values, log_v, accepted=accepted.astype(log_v.dtype))
        return moved, jnp.zeros_like(log_v), info
