"""The paper's deep-mixture APG sampler on coix: the model and the proposals of section 6.3 and appendix F.2."""

from functools import partial

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from benchmarks.peer_coix import apply, concatenate, dense

NUM_CLUSTERS, DIM, HIDDEN, FEATURES = 4, 2, 32, 8
SIGMA0, NOISE = 10.0, 0.1  # the prior mean is zero


def init_params(key):
    keys = iter(jax.random.split(key, 20))

    def network(fan_in, hidden, fan_out):
        return [dense(next(keys), fan_in, hidden), dense(next(keys), hidden, fan_out)]

    def statistics(fan_in):
        return {
            "value": network(fan_in, HIDDEN, FEATURES),
            "share": network(fan_in, HIDDEN, NUM_CLUSTERS),
            "update": network(FEATURES + 2 * DIM, 2 * HIDDEN, 2 * DIM),
        }

    return {
        "initial": statistics(DIM),
        "centres": statistics(DIM + NUM_CLUSTERS + 1),
        "cluster": network(DIM, HIDDEN, 1),
        "place": network(DIM, 2 * HIDDEN, 2),
        "decoder": network(1, HIDDEN, DIM),
    }


def forward(network, inputs):
    return apply(network[1], jnp.tanh(apply(network[0], inputs)))


def target(params, num_particles, x):
    """p(μ, c, h, x)."""
    batch_shape = (num_particles, x.shape[1])
    mu = numpyro.sample("mu", dist.Normal(0.0, SIGMA0).expand((*batch_shape, NUM_CLUSTERS, DIM)).to_event(2))
    points = (*batch_shape, x.shape[2])
    c = numpyro.sample("c", dist.Categorical(logits=jnp.zeros(NUM_CLUSTERS)).expand(points))
    h = numpyro.sample("h", dist.Beta(1.0, 1.0).expand(points))
    mu_c = jnp.take_along_axis(mu, c[..., None], axis=-2)
    mean = forward(params["decoder"], 8 * h[..., None] - 4) + mu_c
    numpyro.sample("x", dist.Normal(mean, NOISE).to_event(1), obs=x)
    return x, mu, c, h


def centres_kernel(params, num_particles, x, mu=None, c=None, h=None):
    """q(μ | x) when coix first calls it with the data alone; q(μ | x, c, h) in every later sweep."""
    del mu
    if c is None:
        networks, inputs = params["initial"], x
    else:
        networks, inputs = params["centres"], concatenate(x, jax.nn.one_hot(c, NUM_CLUSTERS), h[..., None])
    s, t = forward(networks["value"], inputs), jax.nn.softmax(forward(networks["share"], inputs))
    pooled = jnp.einsum("...nm,...ns->...ms", t, s) / jnp.sum(t, axis=-2)[..., None]
    prior = jnp.array([0.0, 0.0, SIGMA0, SIGMA0])
    loc, log_scale = jnp.split(forward(networks["update"], concatenate(pooled, prior)), 2, axis=-1)
    shape = (num_particles, x.shape[1], NUM_CLUSTERS, DIM)
    mu = numpyro.sample("mu", dist.Normal(loc, jnp.exp(log_scale)).expand(shape).to_event(2))
    return x, mu, c, h


def points_kernel(params, x, mu, c=None, h=None):
    """q(c | x, μ) q(h | x, μ_c), independent over points."""
    del c, h
    logits = forward(params["cluster"], x[..., None, :] - mu[..., None, :, :])[..., 0]
    c = numpyro.sample("c", dist.Categorical(logits=logits))
    place = forward(params["place"], x - jnp.take_along_axis(mu, c[..., None], axis=-2))
    h = numpyro.sample("h", dist.Beta(jnp.exp(place[..., 0]), jnp.exp(place[..., 1])))
    return x, mu, c, h


def parts(num_particles, params):
    """The target and its kernels."""
    kernels = [partial(centres_kernel, params, num_particles), partial(points_kernel, params)]
    return partial(target, params, num_particles), kernels
