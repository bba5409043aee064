"""The paper's Gaussian-mixture APG sampler on coix: the model and the proposals of section 6.2 and appendix F.1."""

from functools import partial

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from benchmarks.peer_coix import apply, concatenate, dense

NUM_CLUSTERS, DIM, HIDDEN = 3, 2, 32
ALPHA0, BETA0, NU0 = 2.0, 2.0, 0.1  # the prior mean μ0 is zero


def init_params(key):
    key_initial, key_update, key_hidden, key_logit = jax.random.split(key, 4)
    return {
        "initial": dense(key_initial, DIM, DIM + NUM_CLUSTERS),
        "update": dense(key_update, DIM + NUM_CLUSTERS, DIM + NUM_CLUSTERS),
        "hidden": dense(key_hidden, 3 * DIM, HIDDEN),
        "logit": dense(key_logit, HIDDEN, 1),
    }


def sample_globals(batch_shape, alpha, beta, mean, nu):
    """NormalGamma over (cluster, axis), independent over the batch shape."""
    shape = (*batch_shape, NUM_CLUSTERS, DIM)
    tau = numpyro.sample("tau", dist.Gamma(alpha, beta).expand(shape).to_event(2))
    mu = numpyro.sample("mu", dist.Normal(mean, 1 / jnp.sqrt(nu * tau)).to_event(2))
    return mu, tau


def target(num_particles, x):
    """p(μ, τ, c, x)."""
    batch_shape = (num_particles, x.shape[1])
    mu, tau = sample_globals(batch_shape, ALPHA0, BETA0, 0.0, NU0)
    prior = dist.Categorical(logits=jnp.zeros(NUM_CLUSTERS))
    c = numpyro.sample("c", prior.expand((*batch_shape, x.shape[2])))
    mu_c = jnp.take_along_axis(mu, c[..., None], axis=-2)
    tau_c = jnp.take_along_axis(tau, c[..., None], axis=-2)
    numpyro.sample("x", dist.Normal(mu_c, 1 / jnp.sqrt(tau_c)).to_event(1), obs=x)
    return x, mu, tau, c


def global_kernel(params, num_particles, x, mu=None, tau=None, c=None):
    """q(μ, τ | x) when coix first calls it with the data alone; q(μ, τ | x, c) in every later sweep."""
    del mu, tau
    if c is None:
        outputs = apply(params["initial"], x)
    else:
        outputs = apply(params["update"], concatenate(x, jax.nn.one_hot(c, NUM_CLUSTERS)))
    s, t = outputs[..., :DIM], jax.nn.softmax(outputs[..., DIM:])
    count = jnp.sum(t, axis=-2)[..., None]
    total = jnp.einsum("...nm,...nd->...md", t, s)
    total_sq = jnp.einsum("...nm,...nd->...md", t, s**2)
    nu = NU0 + count
    # With μ0 = 0 the two terms of the paper's β̃ combine into one, which stays finite for an empty cluster.
    beta = BETA0 + 0.5 * jnp.maximum(total_sq - total**2 / nu, 0.0)
    mu, tau = sample_globals((num_particles, x.shape[1]), ALPHA0 + 0.5 * count, beta, total / nu, nu)
    return x, mu, tau, c


def local_kernel(params, x, mu, tau, c=None):
    """q(c | x, μ, τ), independent over points; the uniform prior adds a constant to the logits."""
    del c
    inputs = concatenate(x[..., None, :], mu[..., None, :, :], tau[..., None, :, :])
    logits = apply(params["logit"], jnp.tanh(apply(params["hidden"], inputs)))[..., 0]
    c = numpyro.sample("c", dist.Categorical(logits=logits - jnp.log(NUM_CLUSTERS)))
    return x, mu, tau, c


def parts(num_particles, params):
    """The target and its kernels."""
    return partial(target, num_particles), [partial(global_kernel, params, num_particles), partial(local_kernel, params)]
