"""What a move is: one particle to another, with the incremental weight that keeps it properly weighted for p(x, z)."""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import AnyConditional, Particle
from popgibbs.proposals import Kernel


class MoveInfo(NamedTuple):
    """What a move did, for gradients and diagnostics."""

    proposed: Values  # the block's values before acceptance
    log_v: Elements  # the proposal's incremental weight, before acceptance
    accepted: Elements  # the fraction or probability of acceptance


class Move(eqx.Module):
    """One particle to another, with its incremental weight by element.

    `key_draw` is the key under which proposals draw and score; `key_accept` is for what the move adds.
    """

    @abstractmethod
    def __call__(
        self,
        key_draw: PRNGKey,
        key_accept: PRNGKey,
        kernel: Kernel | None,
        conditional: AnyConditional,
        particle: Particle,
    ) -> tuple[Particle, Elements, MoveInfo]: ...


def propose(
    key: PRNGKey, kernel: Any, conditional: AnyConditional, particle: Particle
) -> tuple[Values, Values, Elements]:
    """A proposal, its factors and its incremental weight. The old state's factors are those the particle carries."""
    values, log_q_new = kernel.draw(key, conditional)
    log_q_old = kernel.score(key, conditional, {name: particle.latents[name] for name in conditional.names})
    log_probs = conditional.log_probs(values)
    log_p_ratio = {name: log_ratio(log_probs[name], particle.log_probs[name]) for name in log_probs}
    log_v = conditional.reduce(log_p_ratio) + (log_q_old - log_q_new)
    return values, log_probs, log_v


def replaced(particle: Particle, values: Values, log_probs: Values) -> Particle:
    return Particle({**particle.latents, **values}, {**particle.log_probs, **log_probs})


def log_ratio(new: Float[Array, "..."], old: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(new / old), where an old density of zero is absorbing: it is never subtracted."""
    return jnp.where(old > -jnp.inf, new - jnp.where(old > -jnp.inf, old, 0.0), -jnp.inf)
