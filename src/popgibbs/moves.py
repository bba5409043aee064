"""Moves: how a block's proposal is put right.

A move takes one particle to another and returns the incremental weight, by element of the block, that keeps the particle
properly weighted for p(x, z). `Weigh` takes every proposal and pays by weight; `Metropolis` and `HMC` leave the posterior
invariant, so their incremental weight is one.
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from popgibbs.population import Particle
from popgibbs.program import constrain, unconstrain
from popgibbs.proposals import Enumerated, Kernel
from popgibbs.steps import AnyConditional
from popgibbs.target import Conditional, total
from popgibbs.typing import Elements, PRNGKey, Values
from popgibbs.weights import log_ratio


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
        values, log_probs, log_v = _propose(key_draw, kernel, conditional, particle)
        info = MoveInfo(values, log_v, accepted=jnp.ones_like(log_v))
        return _replace(particle, values, log_probs), log_v, info


class Metropolis(Move):
    """Take the proposal with probability min(1, v), for each element of the block by itself where v factorises."""

    def __call__(
        self,
        key_draw: PRNGKey,
        key_accept: PRNGKey,
        kernel: Kernel | None,
        conditional: AnyConditional,
        particle: Particle,
    ) -> tuple[Particle, Elements, MoveInfo]:
        values, log_probs, log_v = _propose(key_draw, kernel, conditional, particle)
        # From a state of density zero any state of positive density is taken.
        old_log_probs = {name: particle.log_probs[name] for name in log_probs}
        escapes = (conditional.reduce(old_log_probs) == -jnp.inf) & (conditional.reduce(log_probs) > -jnp.inf)
        accepted = (jnp.log(jax.random.uniform(key_accept, log_v.shape)) < log_v) | escapes
        old_values = {name: particle.latents[name] for name in values}
        moved = _replace(
            particle,
            conditional.accept(accepted, values, old_values, log_probs=False),
            conditional.accept(accepted, log_probs, old_log_probs, log_probs=True),
        )
        info = MoveInfo(values, log_v, accepted=accepted.astype(log_v.dtype))
        return moved, jnp.zeros_like(log_v), info


class HMC(Move):
    """One transition of BlackJAX's Hamiltonian Monte Carlo on the block's unconstrained continuous sites.

    Finite sites of the block are summed out, and drawn from their exact conditional afterwards. The step size is fixed
    before sampling. The block's own proposal, or an earlier block, draws the first state.
    """

    step_size: Any = eqx.field(kw_only=True)
    num_steps: int = eqx.field(static=True, kw_only=True, default=10)

    def __call__(
        self,
        key_draw: PRNGKey,
        key_accept: PRNGKey,
        kernel: Kernel | None,
        conditional: AnyConditional,
        particle: Particle,
    ) -> tuple[Particle, Elements, MoveInfo]:
        import blackjax  # here, because importing it starts JAX, after which the number of devices is fixed

        del kernel
        summed = conditional.summed if isinstance(conditional, Conditional) else None
        names = tuple(name for name in conditional.names if summed is None or name not in summed.names)
        start = unconstrain(conditional.modelled, particle.latents, names)
        real = {name: _over(conditional.is_real(name, particle.latents[name]), start[name]) for name in names}

        def log_density(position: Values) -> Array:
            values, log_volumes = constrain(conditional.modelled, conditional.given, position)
            return _log_marginal(conditional, values) + total(conditional.mask(log_volumes))

        hmc: Any = blackjax.hmc(log_density, self.step_size, _unit_metric(real), self.num_steps)
        state, step = hmc.step(key_accept, hmc.init(start))
        mapped, _ = constrain(conditional.modelled, conditional.given, state.position)
        values = {name: jnp.where(step.is_accepted, mapped[name], particle.latents[name]) for name in names}
        if isinstance(conditional, Conditional) and summed is not None:
            values |= Enumerated().draw(key_draw, conditional.of_summed(values))[0]
        log_probs = conditional.log_probs(values)
        log_v = jnp.zeros_like(conditional.reduce(log_probs))
        accepted = jnp.full_like(log_v, step.acceptance_rate)
        return _replace(particle, values, log_probs), log_v, MoveInfo(values, log_v, accepted)


def _over(real: Array, position: Array) -> Array:
    """Batch elements laid over a position, whose event axes come last."""
    return real.reshape(real.shape + (1,) * (position.ndim - real.ndim))


def _unit_metric(real: Values) -> Any:
    """Unit masses for the entries of a position that are real. Padded ones have no velocity and no kinetic energy.

    Each site has a key of its own, so that the padding of one does not shift the random numbers of the next.
    """
    from blackjax.mcmc.metrics import Metric

    def sample_momentum(key: PRNGKey, position: Any) -> Any:
        keys = jax.random.split(key, len(position))
        return {
            name: jax.random.normal(key, position[name].shape, position[name].dtype)
            for key, name in zip(keys, sorted(position), strict=True)
        }

    def kinetic_energy(momentum: Any, position: Any = None) -> Array:
        del position
        squares = [jnp.sum(jnp.where(real[name], momentum[name], 0.0) ** 2) for name in momentum]
        return 0.5 * sum(squares, start=jnp.zeros(()))

    def unused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a fixed number of leapfrog steps neither turns nor rescales")

    return Metric(sample_momentum, kinetic_energy, unused, unused)


def _log_marginal(conditional: AnyConditional, values: Values) -> Array:
    """The block's factors, finite sites summed out, at values of the others."""
    if not isinstance(conditional, Conditional) or conditional.summed is None:
        return jnp.sum(conditional.reduce(conditional.log_probs(values)))
    finite = conditional.of_summed(values)
    others = [name for name in conditional.factors if name not in finite.factors]
    return total(conditional.target.log_probs(finite.given, others)) + Enumerated().log_sum(finite)


def _propose(
    key: PRNGKey, kernel: Any, conditional: AnyConditional, particle: Particle
) -> tuple[Values, Values, Elements]:
    """A proposal, its factors and its incremental weight. The old state's factors are those the particle carries."""
    values, log_q_new = kernel.draw(key, conditional)
    log_q_old = kernel.score(key, conditional, {name: particle.latents[name] for name in conditional.names})
    log_probs = conditional.log_probs(values)
    log_p_ratio = {name: log_ratio(log_probs[name], particle.log_probs[name]) for name in log_probs}
    log_v = conditional.reduce(log_p_ratio) + (log_q_old - log_q_new)
    return values, log_probs, log_v


def _replace(particle: Particle, values: Values, log_probs: Values) -> Particle:
    return Particle({**particle.latents, **values}, {**particle.log_probs, **log_probs})
