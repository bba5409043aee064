"""What a move is: one particle to another, with the incremental weight that keeps it properly weighted for p(x, z)."""

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from popgibbs._typing import Elements, LogProbs, PRNGKey, Values
from popgibbs.model import Conditional, Particle
from popgibbs.proposals import BoundKernel


class MoveInfo(NamedTuple):
    """What a move did, for gradients and diagnostics."""

    proposed: Values  # the block's values before acceptance
    log_v: Elements  # the proposal's incremental weight, before acceptance
    accepted: Elements  # the fraction or probability of acceptance


class MoveKeys(NamedTuple):
    """The random keys of a move."""

    draw: PRNGKey  # under which proposals draw and score
    accept: PRNGKey  # for whatever the move adds


class Move(eqx.Module):
    """How one particle becomes another, with an incremental weight by element."""

    uses_proposal: ClassVar[bool] = True  # else the block's proposal is for the first draw only
    weighs: ClassVar[bool] = False  # takes every proposal and weighs it, so that an impossible one would bias the result
    sums_out_finite: ClassVar[bool] = False  # moves the continuous sites of a block with its finite ones summed out

    @abstractmethod
    def __call__(
        self, keys: MoveKeys, proposal: BoundKernel | None, conditional: Conditional, particle: Particle
    ) -> tuple[Particle, Elements, MoveInfo]:
        """The moved particle, its incremental log-weight by element of the block, and what happened."""


def propose(
    proposal: BoundKernel | None, conditional: Conditional, particle: Particle
) -> tuple[Values, LogProbs, Elements]:
    """Proposed values, their factors and incremental weight. The old state's factors are those the particle carries."""
    assert proposal is not None
    values, log_q_new = proposal.draw()
    log_q_old = proposal.score({name: particle.latents[name] for name in conditional.names})
    log_probs = conditional.log_probs(values)
    log_p_ratio = {name: log_ratio(log_probs[name], particle.log_probs[name]) for name in log_probs}
    log_v = conditional.reduce(log_p_ratio) + (log_q_old - log_q_new)
    return values, log_probs, log_v


def replaced(particle: Particle, values: Values, log_probs: Values) -> Particle:
    return Particle({**particle.latents, **values}, {**particle.log_probs, **log_probs})


def log_ratio(new: Float[Array, "..."], old: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(new / old), where an old density of zero is absorbing: it is never subtracted."""
    return jnp.where(old > -jnp.inf, new - jnp.where(old > -jnp.inf, old, 0.0), -jnp.inf)
