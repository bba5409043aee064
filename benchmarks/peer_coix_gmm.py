"""The paper's Gaussian-mixture APG sampler on coix 0.1.0: the peer of our speed benchmark.

Written by us against coix's public API (`coix.algo.apgs` on the NumPyro backend), with the model and the
proposals of section 6.2 and appendix F.1 of the paper. Not part of popgibbs and never imported by it.

Axes, from the left: particle, instance, then points or clusters. coix takes the axes shared by all
log-densities as the batch, so the globals are events of shape (cluster, axis) and their log-density is
(particle, instance). The data carry a particle axis of size one: coix's `resample` gathers every array whose
first size is the number of particles, and must not mistake the instances for particles.
"""

from functools import partial, reduce

import coix
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax

NUM_CLUSTERS, DIM, HIDDEN = 3, 2, 32
ALPHA0, BETA0, NU0 = 2.0, 2.0, 0.1  # the prior mean μ0 is zero


def init_params(key):
    """Fan-in scaled normal weights and zero biases."""

    def dense(key, fan_in, fan_out):
        weight = jax.random.normal(key, (fan_in, fan_out)) / jnp.sqrt(fan_in)
        return {"weight": weight, "bias": jnp.zeros(fan_out)}

    key_initial, key_update, key_hidden, key_logit = jax.random.split(key, 4)
    return {
        "initial": dense(key_initial, DIM, DIM + NUM_CLUSTERS),
        "update": dense(key_update, DIM + NUM_CLUSTERS, DIM + NUM_CLUSTERS),
        "hidden": dense(key_hidden, 3 * DIM, HIDDEN),
        "logit": dense(key_logit, HIDDEN, 1),
    }


def apply(layer, inputs):
    return inputs @ layer["weight"] + layer["bias"]


def concatenate(*arrays):
    """Concatenate along the last axis, broadcasting the others."""
    shape = jnp.broadcast_shapes(*(a.shape[:-1] for a in arrays))
    return jnp.concatenate([jnp.broadcast_to(a, shape + a.shape[-1:]) for a in arrays], axis=-1)


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
    """q(μ, τ | x) where coix first calls it, on the data alone; q(μ, τ | x, c) in every sweep after."""
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
    # With μ0 = 0 the two terms of the paper's β̃ join into one, which an empty cluster leaves finite.
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


def make_step(*, batch_size=20, num_points=60, num_particles=10, num_sweeps=4, learning_rate=2.5e-4):
    """Returns (state, step) with step(state, key, x) -> (state, metrics).

    `x` has shape (batch, points, 2); `num_sweeps` counts the sweeps after the initial proposal (the paper's K
    is one more). The whole step, gradients and Adam included, is one compiled function. Metrics are means
    over instances.
    """
    return _make_step(coix.algo.apgs, batch_size, num_points, num_particles, num_sweeps, learning_rate)


def make_unrolled_step(*, batch_size=20, num_points=60, num_particles=10, num_sweeps=4, learning_rate=2.5e-4):
    """The same by `_unrolled_apgs`."""
    return _make_step(_unrolled_apgs, batch_size, num_points, num_particles, num_sweeps, learning_rate)


def _make_step(apgs, batch_size, num_points, num_particles, num_sweeps, learning_rate):
    if num_particles < 2:
        raise ValueError("coix resamples arrays by their first size, which needs num_particles > 1")
    optimizer = optax.adam(learning_rate)

    def loss_fn(params, key, x):
        kernels = [partial(global_kernel, params, num_particles), partial(local_kernel, params)]
        sampler = apgs(partial(target, num_particles), kernels, num_sweeps=num_sweeps)
        _, _, metrics = coix.traced_evaluate(sampler, seed=key)(x[None])
        loss = metrics["loss"] / batch_size  # coix sums over instances
        return loss, {
            "loss": loss,
            "ess": metrics["ess"],
            "log_evidence": metrics["log_Z"] / batch_size,
            "log_joint": metrics["log_density"] / batch_size,
        }

    @jax.jit
    def step(state, key, x):
        if x.shape != (batch_size, num_points, DIM):
            raise ValueError(f"x has shape {x.shape}; this step is for {(batch_size, num_points, DIM)}")
        params, opt_state = state
        grads, metrics = jax.grad(loss_fn, has_aux=True)(params, key, x)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), metrics

    params = init_params(jax.random.key(0))
    return (params, optimizer.init(params)), step


def _unrolled_apgs(target, kernels, *, num_sweeps):
    """`coix.algo.apgs` from the same combinators with a Python loop over sweeps.

    Timed beside it because differentiating its `fori_loop` about doubles the step on a CPU.
    """
    kernels = [coix.detach(kernel) for kernel in kernels]
    q = coix.propose(target, reduce(lambda q, k: coix.compose(k, q), kernels), loss_fn=coix.loss.rws_loss)
    for kernel in kernels * num_sweeps:
        moved = coix.compose(kernel, coix.resample(q))
        q = coix.propose(coix.extend(target, kernel), moved, loss_fn=coix.loss.apg_loss)
    return q
