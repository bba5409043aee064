"""`RefinedGuess`: draws and densities of the refined distribution, gradients for the guess."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from popgibbs.distributions import RefinedGuess

VALUE = jnp.array([0.3, -1.2])


def proposal(guess, log_scale):
    """A Normal around 1 for any guess, as if optimisation had found the mode 1."""
    mode = 1.0 + 0.0 * guess
    return RefinedGuess(dist.Normal(mode, jnp.exp(log_scale)).to_event(1), dist.Normal(guess, 2.0).to_event(1))


def test_draws_and_densities_are_those_of_the_refined_distribution():
    ours, refined = proposal(jnp.zeros(2), 0.5), dist.Normal(jnp.ones(2), jnp.exp(0.5)).to_event(1)
    key = jax.random.key(0)
    np.testing.assert_array_equal(ours.sample(key, (3,)), refined.sample(key, (3,)))
    np.testing.assert_allclose(ours.log_prob(VALUE), refined.log_prob(VALUE))


def test_the_guess_learns_as_if_it_had_proposed_the_value_itself():
    guess, log_scale = jnp.array([0.1, 0.4]), 0.5
    of_guess, of_scale = jax.grad(lambda g, s: proposal(g, s).log_prob(VALUE), (0, 1))(guess, log_scale)
    np.testing.assert_allclose(of_guess, (VALUE - guess) / 4)  # ∂ log Normal(value; guess, 2)
    alone = jax.grad(lambda s: dist.Normal(jnp.ones(2), jnp.exp(s)).to_event(1).log_prob(VALUE))(log_scale)
    np.testing.assert_allclose(of_scale, alone)


def test_the_value_gets_the_gradient_of_the_refined_density_alone():
    """Reparametrised draws and Langevin steps then see the true density."""
    ours = jax.grad(lambda value: proposal(jnp.zeros(2), 0.5).log_prob(value))(VALUE)
    alone = jax.grad(lambda value: dist.Normal(jnp.ones(2), jnp.exp(0.5)).to_event(1).log_prob(value))(VALUE)
    np.testing.assert_allclose(ours, alone)
