"""Code that the peers on coix 0.1.0 share: layers, and a compiled training step from a target and its kernels.

Written against coix's public API (`coix.algo.apgs` on the NumPyro backend). It is not part of popgibbs and never imported
by it.

Axes, from the left: particle, instance, then points or clusters. coix takes the axes shared by all log-densities as the
batch, so the globals are events and their log-density is (particle, instance). The data carry a particle axis of size
one: coix's `resample` gathers every array whose first size is the number of particles, and must not mistake the
instances for particles.
"""

from functools import reduce

import coix
import jax
import jax.numpy as jnp
import optax


def dense(key, fan_in, fan_out):
    """Fan-in scaled normal weights and zero biases."""
    weight = jax.random.normal(key, (fan_in, fan_out)) / jnp.sqrt(fan_in)
    return {"weight": weight, "bias": jnp.zeros(fan_out)}


def apply(layer, inputs):
    return inputs @ layer["weight"] + layer["bias"]


def concatenate(*arrays):
    """Concatenate along the last axis, broadcasting the others."""
    shape = jnp.broadcast_shapes(*(a.shape[:-1] for a in arrays))
    return jnp.concatenate([jnp.broadcast_to(a, shape + a.shape[-1:]) for a in arrays], axis=-1)


def make_step(parts, params, *, batch_size, num_sweeps, unrolled=False, learning_rate=2.5e-4):
    """Return (state, step) with step(state, key, x) -> (state, metrics).

    `parts(params)` returns the target and its kernels; `x` has shape (batch, points, axis); `num_sweeps` counts the
    sweeps after the initial proposal (the paper's K is one more). The whole step, including gradients and Adam, is one
    compiled function. Metrics are means over instances.
    """
    apgs = _unrolled_apgs if unrolled else coix.algo.apgs
    optimizer = optax.adam(learning_rate)

    def loss_fn(params, key, x):
        target, kernels = parts(params)
        _, _, metrics = coix.traced_evaluate(apgs(target, kernels, num_sweeps=num_sweeps), seed=key)(x[None])
        loss = metrics["loss"] / batch_size  # coix sums over instances
        return loss, {
            "loss": loss,
            "ess": metrics["ess"],
            "log_evidence": metrics["log_Z"] / batch_size,
            "log_joint": metrics["log_density"] / batch_size,
        }

    @jax.jit
    def step(state, key, x):
        params, opt_state = state
        grads, metrics = jax.grad(loss_fn, has_aux=True)(params, key, x)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), metrics

    return (params, optimizer.init(params)), step


def _unrolled_apgs(target, kernels, *, num_sweeps):
    """`coix.algo.apgs` from the same combinators with a Python loop over sweeps.

    Timed as well because differentiating the `fori_loop` of the original about doubles the step on a CPU.
    """
    kernels = [coix.detach(kernel) for kernel in kernels]
    q = coix.propose(target, reduce(lambda q, k: coix.compose(k, q), kernels), loss_fn=coix.loss.rws_loss)
    for kernel in kernels * num_sweeps:
        moved = coix.compose(kernel, coix.resample(q))
        q = coix.propose(coix.extend(target, kernel), moved, loss_fn=coix.loss.apg_loss)
    return q
