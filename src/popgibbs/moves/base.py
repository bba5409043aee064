"""Moves take one particle to another, with an incremental weight that keeps it properly weighted for p(x, z)."""

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from popgibbs._typing import Elements, LogProbs, PRNGKey, Values
from popgibbs.model import Conditional, Particle
from popgibbs.proposals import BoundKernel


class MoveInfo(NamedTuple):
    """What a move did to one particle, for gradients and diagnostics.

    Attributes:
        proposed: Values of the block's sites before acceptance, by site name.
        log_v: Incremental log-weight of the proposal before acceptance, with axis (element,).
        accepted: Whether each element was accepted, or with which probability, with axis (element,).

    Examples:
        >>> info = pg.MoveInfo(proposed={"mu": jnp.zeros(())}, log_v=jnp.zeros(1), accepted=jnp.ones(1))
        >>> info.accepted
        Array([1.], dtype=float32)
    """

    proposed: Values
    log_v: Elements
    accepted: Elements


class MoveKeys(NamedTuple):
    """The random keys of a move."""

    draw: PRNGKey  # for the proposal, which draws and scores under it
    accept: PRNGKey  # for the move itself


class Move(eqx.Module):
    """Abstract base of moves, which update the sites of a block in one particle.

    A move must keep particles properly weighted for p(x, z). Use `Reweight`, `Metropolis` or `HMC`, or define `__call__`
    in a subclass.

    Examples:
        >>> class Stay(pg.Move):
        ...     def __call__(self, keys, proposal, conditional, particle):
        ...         zeros = jnp.zeros(conditional.real.shape)
        ...         old = {name: particle.latents[name] for name in conditional.names}
        ...         return particle, zeros, pg.MoveInfo(proposed=old, log_v=zeros, accepted=zeros)
        >>> pg.Block("mu", proposal=Location(), move=Stay()).move
        Stay()
    """

    uses_proposal: ClassVar[bool] = True  # if false, the block's proposal makes the first draw only
    needs_finite: ClassVar[bool] = False  # every site must be finite
    weighs: ClassVar[bool] = False  # takes every proposal and weighs it, so that an impossible one would bias the result
    sums_out_finite: ClassVar[bool] = False  # moves the continuous sites of a block with its finite ones summed out

    @property
    def summary(self) -> str:
        """What the move does, in a few words, for `APG.describe`; by default the name of its class."""
        return type(self).__name__

    @abstractmethod
    def __call__(
        self, keys: MoveKeys, proposal: BoundKernel | None, conditional: Conditional, particle: Particle
    ) -> tuple[Particle, Elements, MoveInfo]:
        """Move one particle.

        Args:
            keys: Random keys: `keys.draw`, to which the proposal is bound, and `keys.accept`.
            proposal: The block's proposal at this particle, or None if `uses_proposal` is false.
            conditional: The block's conditional p(z_b | x, z_-b) at this particle.
            particle: The values of all latents and the log-probabilities of all factors.

        Returns:
            The moved particle, its incremental log-weight with axis (element,), and the information about the move.
        """


def propose(
    proposal: BoundKernel | None, conditional: Conditional, particle: Particle
) -> tuple[Values, LogProbs, Elements]:
    """Proposed values, their factors and their incremental weight; the particle carries the factors of its old state."""
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
