"""Hamiltonian Monte Carlo on the unconstrained sites of a block."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import AnyConditional, Conditional, Particle, constrain, total, unconstrain
from popgibbs.moves.base import Move, MoveInfo, replaced
from popgibbs.proposals import Enumerated, Kernel


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
        return replaced(particle, values, log_probs), log_v, MoveInfo(values, log_v, accepted)


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
