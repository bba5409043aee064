"""Proposals that optimise a network's guess."""

from typing import Any

import numpyro.distributions as dist
from jax.lax import stop_gradient
from jaxtyping import Array, Float


class RefinedGuess(dist.Distribution):
    """The distribution `refined`, whose log-probability also trains the `guess` that it was optimised from.

    Optimisation erases the starting point, so the density of `refined` gives the network behind `guess` no gradient.
    Here log_prob(z) has the value log refined(z) and the gradient ∇ log refined(z) + ∇ log guess(z), the second one with
    respect to the parameters of `guess` only.

    Args:
        refined: the distribution that is drawn from and scored.
        guess: a distribution of the same shape that a network proposed.

    Examples:
        >>> guess, refined = dist.Normal(0.0, 1.0), dist.Normal(0.3, 0.1)
        >>> proposal = pg.RefinedGuess(refined, guess)
        >>> float(proposal.log_prob(0.2)) == float(refined.log_prob(0.2))
        True
        >>> def loss(loc):
        ...     return pg.RefinedGuess(refined, dist.Normal(loc, 1.0)).log_prob(0.25)
        >>> float(jax.grad(loss)(0.0))
        0.25
    """

    def __init__(self, refined: Any, guess: Any):
        self.refined, self.guess = refined, guess
        super().__init__(refined.batch_shape, refined.event_shape)

    @property
    def support(self) -> Any:
        """The support of `refined`."""
        return self.refined.support

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws from `refined`."""
        return self.refined.sample(key, sample_shape)

    def log_prob(self, value: Any, intermediates: Any = None) -> Float[Array, "..."]:
        """The log-probability under `refined`, with the gradients of both distributions."""
        del intermediates
        lesson = self.guess.log_prob(stop_gradient(value))
        return self.refined.log_prob(value) + (lesson - stop_gradient(lesson))
