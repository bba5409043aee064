"""Hamiltonian Monte Carlo on the unconstrained sites of a block."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from popgibbs._random import unrolled
from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import Conditional, Particle, constrain, total, unconstrain
from popgibbs.moves.base import Move, MoveInfo, MoveKeys, replaced
from popgibbs.proposals import BoundKernel, Enumerated


class HMC(Move):
    """One transition of BlackJAX's Hamiltonian Monte Carlo on the block's unconstrained continuous sites.

    Finite sites of the block are summed out, and drawn from their exact conditional afterwards. The weight does not
    change. The block's proposal makes the first draw only; without one, an earlier block or another sampler
    (`APG(..., initial=...)`) must draw the sites first.

    Args:
        step_size: The step size of the leapfrog integrator, with a unit mass matrix; `tune_step_size` finds one.
        num_steps: Leapfrog steps per transition.

    Examples:
        >>> block = pg.Block("mu", proposal=Location(), move=pg.HMC(step_size=0.1, num_steps=5))
        >>> block.move.num_steps
        5
    """

    uses_proposal: ClassVar[bool] = False
    sums_out_finite: ClassVar[bool] = True

    step_size: Any = eqx.field(kw_only=True)
    num_steps: int = eqx.field(static=True, kw_only=True, default=10)

    @property
    def summary(self) -> str:
        return f"HMC, {self.num_steps} leapfrog steps"

    def __call__(
        self, keys: MoveKeys, proposal: BoundKernel | None, conditional: Conditional, particle: Particle
    ) -> tuple[Particle, Elements, MoveInfo]:
        import blackjax  # not at the top: it initialises JAX, which fixes the number of devices

        del proposal
        summed = () if conditional.summed is None else conditional.summed.names
        names = tuple(name for name in conditional.names if name not in summed)
        start = unconstrain(conditional.modelled, particle.latents, names)
        real = {name: _over(conditional.is_real(name, particle.latents[name]), start[name]) for name in names}

        def log_density(position: Values) -> Array:
            values, log_volumes = constrain(conditional.modelled, conditional.given, position)
            return _log_marginal(keys.draw, conditional, values) + total(conditional.mask(log_volumes))

        hmc: Any = blackjax.hmc(log_density, self.step_size, _unit_metric(real), self.num_steps)
        state, step = hmc.step(unrolled(keys.accept), hmc.init(start))
        mapped, _ = constrain(conditional.modelled, conditional.given, state.position)
        values = {name: jnp.where(step.is_accepted, mapped[name], particle.latents[name]) for name in names}
        if summed:
            _, finite = conditional.without_summed(values)
            values |= Enumerated().bind(keys.draw, finite).draw()[0]
        log_probs = conditional.log_probs(values)
        log_v = jnp.zeros_like(conditional.reduce(log_probs))
        accepted = jnp.full_like(log_v, step.acceptance_rate)
        return replaced(particle, values, log_probs), log_v, MoveInfo(values, log_v, accepted)


def _over(real: Array, position: Array) -> Array:
    """Batch elements broadcast to a position, whose event axes come last."""
    return real.reshape(real.shape + (1,) * (position.ndim - real.ndim))


def _unit_metric(real: Values) -> Any:
    """Unit masses for the real entries of a position; padded entries have no velocity and no kinetic energy.

    Each site has its own key, so that the padding of one does not shift the random numbers of the next.
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


def _log_marginal(key: PRNGKey, conditional: Conditional, values: Values) -> Array:
    """The block's factors, finite sites summed out, at values of the others."""
    if conditional.summed is None:
        return jnp.sum(conditional.reduce(conditional.log_probs(values)))
    log_others, finite = conditional.without_summed(values)
    return total(log_others) + Enumerated().bind(key, finite).log_sum()
