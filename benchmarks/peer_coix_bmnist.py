"""The paper's bouncing-digits APG sampler on coix: the model and the proposals of section 6.4 and appendix F.3.

Each time step is a separate kernel, as coix requires. Images are placed and cropped by `jax.image.scale_and_translate`
and correlated by `jax.scipy.signal.correlate2d`; with `own_images`, by the functions of popgibbs.
"""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from benchmarks.peer_coix import apply, dense
from popgibbs.paper.bmnist import images as ours
from popgibbs.paper.bmnist.experiment import mean_digit

NUM_DIGITS, CODE, SIDE, CANVAS = 3, 10, 28, 96
STEP_SCALE, FLOOR = 0.1, 1e-3


def init_params(key):
    keys = iter(jax.random.split(key, 20))

    def network(*sizes):
        return [dense(next(keys), fan_in, fan_out) for fan_in, fan_out in pairwise(sizes)]

    return {
        "decoder": network(CODE, 200, 400, SIDE**2),
        "encoder": network(SIDE**2, 400, 200),
        "what": network(200, 2 * CODE),
        "map": network((CANVAS - SIDE + 1) ** 2, 200, 200),
        "loc": network(100, 2),
        "log_scale": network(100, 2),
    }


def forward(network, inputs):
    for layer in network[:-1]:
        inputs = jax.nn.relu(apply(layer, inputs))
    return apply(network[-1], inputs)


def decode(params, what):
    return jax.nn.sigmoid(forward(params["decoder"], what)).reshape(*what.shape[:-1], SIDE, SIDE)


def translate(image, offset, size):
    """Shift an image by an offset of (horizontal, vertical) pixels."""
    return jax.image.scale_and_translate(
        image, (size, size), (0, 1), jnp.ones(2), offset[::-1], method="linear", antialias=False
    )


def place_generally(image, where):
    return translate(image, (where + 1) / 2 * (CANVAS - SIDE), CANVAS)


def crop_generally(frame, where):
    return translate(frame, -(where + 1) / 2 * (CANVAS - SIDE), SIDE)


def compose_generally(images, where):
    return jnp.clip(jnp.sum(jax.vmap(place_generally)(images, where), axis=0), 0.0, 1.0)


def correlate_generally(frame, image):
    return jax.scipy.signal.correlate2d(frame, image, mode="valid")


def correlate_ours(frame, image):
    return ours.correlate(frame[None], image[None], 1)[0, 0]


def over(function, num_axes):
    """Map a function of one element over the leading axes."""
    for _ in range(num_axes):
        function = jax.vmap(function)
    return function


def target(params, num_particles, operations, x):
    """p(what, where, x)."""
    compose, _, _ = operations
    batch = (num_particles, x.shape[1])
    what = numpyro.sample("what", dist.Normal(0.0, 1.0).expand((*batch, NUM_DIGITS, CODE)).to_event(2))
    images = decode(params, what)
    where = []
    for t in range(x.shape[2]):
        before, scale = (where[-1], STEP_SCALE) if where else (jnp.zeros((*batch, NUM_DIGITS, 2)), 1.0)
        new = [
            numpyro.sample(f"where_{t}_{d}", dist.Normal(before[:, :, d], scale).to_event(1)) for d in range(NUM_DIGITS)
        ]
        where.append(jnp.stack(new, axis=-2))
        share = FLOOR + (1 - 2 * FLOOR) * over(compose, 2)(images, where[-1])
        numpyro.sample(f"x_{t}", dist.Bernoulli(share).to_event(2), obs=x[:, :, t])
    return x, what, *where


def where_kernel(params, num_particles, operations, t, x, what=None, *where):
    """q(where_t | x_t, what), one digit after another, each subtracted from the frame before the next."""
    compose, _, correlate = operations
    batch = (num_particles, x.shape[1])
    mean = jnp.broadcast_to(mean_digit(), (*batch, NUM_DIGITS, SIDE, SIDE))
    images = mean if what is None else decode(params, what)
    left = jnp.broadcast_to(x[:, :, t], (*batch, CANVAS, CANVAS))
    placed = []
    for d in range(NUM_DIGITS):
        map_ = over(correlate, 2)(left, images[:, :, d]).reshape(*batch, -1)
        hidden = jax.nn.relu(forward(params["map"], jax.nn.softmax(map_)))
        for_loc, for_scale = jnp.split(hidden, 2, axis=-1)
        loc, log_scale = jnp.tanh(forward(params["loc"], for_loc)), forward(params["log_scale"], for_scale)
        normal = dist.Normal(loc, jnp.exp(0.5 * log_scale)).to_event(1)
        placed.append(numpyro.sample(f"where_{t}_{d}", normal))
        left = left - over(compose, 2)(images[:, :, d : d + 1], placed[-1][:, :, None])
    new = jnp.stack(placed, axis=-2)
    return x, what, *where[:t], new, *where[t + 1 :]


def what_kernel(params, operations, x, what, *where):
    """q(what | x, where): crops through a network, averaged over time."""
    del what
    _, crop, _ = operations
    places = jnp.stack(where, axis=2)  # (particle, instance, time, digit, 2)
    frames = jnp.broadcast_to(x[:, :, :, None], (*places.shape[:-1], CANVAS, CANVAS))
    crops = over(crop, 4)(frames, places).reshape(*places.shape[:-1], SIDE**2)
    pooled = jnp.mean(jax.nn.relu(forward(params["encoder"], crops)), axis=2)
    loc, log_variance = jnp.split(forward(params["what"], pooled), 2, axis=-1)
    what = numpyro.sample("what", dist.Normal(loc, jnp.exp(0.5 * log_variance)).to_event(2))
    return x, what, *where


def parts(num_particles, num_frames, own_images, params):
    """The target and its kernels."""
    general = (compose_generally, crop_generally, correlate_generally)
    operations = (ours.compose, ours.crop, correlate_ours) if own_images else general
    kernels = [partial(where_kernel, params, num_particles, operations, t) for t in range(num_frames)]
    return partial(target, params, num_particles, operations), [*kernels, partial(what_kernel, params, operations)]
