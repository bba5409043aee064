"""Arithmetic of log-weights in which a zero weight stays zero and a NaN never spreads."""

import jax.numpy as jnp
from jax.nn import logsumexp
from jaxtyping import Array, Bool, Float


def proper(log_weights: Float[Array, "..."]) -> Float[Array, "..."]:
    """The log-weights with NaN and +inf, which no density can produce, read as weight zero."""
    return jnp.where(log_weights < jnp.inf, log_weights, -jnp.inf)


def normalise(log_weights: Float[Array, "particle *rest"]) -> Float[Array, "particle *rest"]:
    """w̄ = w / Σw over particles; all zero where no particle has weight."""
    log_weights = proper(log_weights)
    peak = jnp.max(log_weights, axis=0, keepdims=True)
    weights = jnp.exp(log_weights - jnp.where(peak > -jnp.inf, peak, 0.0))
    total = jnp.sum(weights, axis=0, keepdims=True)
    return weights / jnp.where(total > 0, total, 1.0)


def log_mean_exp(log_weights: Float[Array, " particle"]) -> Float[Array, ""]:
    """log (1/L) Σw."""
    return logsumexp(proper(log_weights)) - jnp.log(log_weights.shape[0])


def ess(log_weights: Float[Array, " particle"]) -> Float[Array, ""]:
    """Effective sample size, (Σw)² / Σw²; zero where no particle has weight."""
    return ess_fraction(normalise(log_weights)) * log_weights.shape[0]


def ess_fraction(weights: Float[Array, "particle *rest"]) -> Float[Array, "*rest"]:
    """ESS / L of normalised weights; zero where no particle has weight."""
    squares = weights.shape[0] * jnp.sum(weights**2, axis=0)
    return jnp.where(squares > 0, 1.0 / jnp.where(squares > 0, squares, 1.0), 0.0)


def weighted_sum(
    weights: Float[Array, "..."], values: Float[Array, "..."], axis: int | None = None
) -> Float[Array, "..."]:
    """Σ w̄ x, where a weight of zero cancels even a log-density of −inf."""
    return jnp.sum(weights * jnp.where(weights > 0, values, 0.0), axis=axis)


def degenerate(log_weights: Float[Array, " particle"]) -> Bool[Array, ""]:
    """Whether no particle has weight, or a weight is not a number."""
    return jnp.all(proper(log_weights) == -jnp.inf) | jnp.any(jnp.isnan(log_weights))
