"""Proposals for bouncing digits: positions by correlation with their images, codes from cropped frames."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.lax import stop_gradient
from jaxtyping import Array, Float, Key

from popgibbs._typing import Values
from popgibbs.data import Data
from popgibbs.distributions import Autoregressive, PrecisionNormal, RefinedGuess, cholesky, solve_triangular
from popgibbs.model import Neighbour
from popgibbs.paper.bmnist.images import (
    DIGIT,
    RANGE,
    bounce,
    correlate,
    crop,
    cross_correlate,
    explained,
    moved,
    num_offsets,
    places,
)
from popgibbs.paper.bmnist.model import CODE, layers
from popgibbs.statistics import mean_pool

AXES = np.eye(CODE, dtype=np.float32)  # one array for all uses, so that the compiler recognises common subexpressions
NUM_REFINEMENTS = 2
NUM_STEPS, NUM_ROUGH = 5, 3  # optimisation steps on codes: all of them, and the first ones, which fit cropped images
PEAK = 0.1  # the width of a peak of a correlation map, in positions: about three pixels
FRACTIONS = np.array([1.0, 0.5, 0.25, 0.1, 0.0], dtype=np.float32)  # tried for each step that fits a cropped image
LONGEST = 3.0  # the longest step between codes; codes of digits are within about this distance of zero


class View(NamedTuple):
    """The inputs from which one digit is located."""

    scores: Float[Array, "offset offset"]  # the correlation map, without the digits placed before
    expected: list[tuple[Any, Any]]  # places near which the digit is expected, and whether they exist
    # At the first draw the expected place extrapolates the motion; later they are those in the neighbouring frames.
    is_first: bool
    image: Float[Array, "28 28"] | None  # the digit's image, if known
    look: Callable[[Array], Array]  # the part of the frame at a place, without the digits placed before


class SoftArgmax(eqx.Module):
    """Mean and spread of the position under the map as log-density, near its peak, with a learned correction and scale.

    Positions in the neighbouring frames, or the extrapolated one at the first draw, pull with a learned strength, so
    that digits with similar maps are not confused. If the digit's image is known, Gauss-Newton steps on the difference
    of pixels then refine the position.
    """

    log_sharpness: Array
    log_pull: Array
    log_inertia: Array
    log_trust: Array  # the precision of one pixel for the position
    network: eqx.nn.MLP
    # Every second pixel: maps are smooth, and a quarter of the entries gives their mean almost as well.
    stride: int = eqx.field(static=True, default=2)

    def __init__(self, *, key: Key[Array, ""]):
        self.log_sharpness = jnp.log(jnp.array(0.3))
        self.log_pull = jnp.log(jnp.array(3.0))
        self.log_inertia = jnp.log(jnp.array(70.0))
        self.log_trust = jnp.log(jnp.array(5.0))
        network = eqx.nn.MLP(6, 4, 32, 1, activation=jnp.tanh, key=key)
        # A fresh head starts near the map's own mean and spread.
        last = lambda n: (n.layers[-1].weight, n.layers[-1].bias)  # noqa: E731
        self.network = eqx.tree_at(last, network, (0.1 * network.layers[-1].weight, jnp.zeros(4)))

    def __call__(self, view: View) -> dist.Distribution:
        loc, scale = self._from_map(view)
        guess = dist.Normal(loc, scale).to_event(1)
        if view.image is None:
            return guess
        loc, scale, image = stop_gradient((loc, scale, view.image))
        slopes = jnp.stack(jnp.gradient(image, axis=(1, 0))).reshape(2, -1)
        for _ in range(NUM_REFINEMENTS):
            loc += _refinement(stop_gradient(view.look(loc)) - image, slopes)
        # In units of positions; one position is RANGE / 2 pixels.
        precision = jnp.exp(self.log_trust) * jnp.sum(slopes**2, axis=1) * (RANGE / 2) ** 2
        return RefinedGuess(dist.Normal(loc, (precision + scale**-2) ** -0.5).to_event(1), guess)

    def _from_map(self, view: View) -> tuple[Array, Array]:
        axis = places(self.stride)

        def from_place(place: Any) -> Array:
            return (axis - place[1])[:, None] ** 2 + (axis - place[0]) ** 2

        logits = jnp.exp(self.log_sharpness) * view.scores
        pull = jnp.exp(self.log_inertia if view.is_first else self.log_pull)
        for place, exists in view.expected:
            logits -= jnp.where(exists, pull, 0.0) * from_place(place)
        # The mean of two equal peaks is not a digit, so only the neighbourhood of the highest peak counts.
        row, column = jnp.unravel_index(jnp.argmax(logits), logits.shape)
        logits -= from_place(jnp.asarray(axis)[jnp.stack([column, row])]) / (2 * PEAK**2)
        shares = jnp.exp(logits - stop_gradient(jnp.max(logits)))
        by_row, by_column = jnp.sum(shares, axis=1), jnp.sum(shares, axis=0)
        marginals = jnp.stack([by_column, by_row]) / jnp.sum(by_row)  # horizontal, vertical
        loc = marginals @ axis
        # No sharper than a quarter of the map's grid spacing.
        spread = jnp.sqrt(jnp.sum(marginals * (axis - loc[:, None]) ** 2, axis=1) + (0.25 * (axis[1] - axis[0])) ** 2)
        correction, log_factor = jnp.split(
            self.network(jnp.concatenate([loc, jnp.log(spread), jnp.max(marginals, 1)])), 2
        )
        return loc + spread * correction, spread * jnp.exp(log_factor)


def _refinement(difference: Float[Array, "28 28"], slopes: Float[Array, "2 784"]) -> Float[Array, " 2"]:
    """The Gauss-Newton step towards the best match with the digit's image, at most one pixel along each axis."""
    u, v = -slopes @ difference.reshape(-1)
    a, d = jnp.sum(slopes**2, axis=1) + 1e-3
    b = jnp.sum(slopes[0] * slopes[1])
    pixels = jnp.stack([d * u - b * v, a * v - b * u]) / (a * d - b * b)
    return jnp.clip(pixels, -1.0, 1.0) * 2 / RANGE


class PaperHead(eqx.Module):
    """The paper's network on the softmax of the map: 4761-200-(2×100)-(2×2), mean through tanh."""

    body: eqx.nn.Linear
    split: eqx.nn.Linear
    loc: eqx.nn.Linear
    log_variance: eqx.nn.Linear
    stride: int = eqx.field(static=True, default=1)

    def __init__(self, *, key: Key[Array, ""]):
        keys = jax.random.split(key, 4)
        self.body = eqx.nn.Linear(num_offsets(1) ** 2, 200, key=keys[0])
        self.split = eqx.nn.Linear(200, 200, key=keys[1])
        self.loc = eqx.nn.Linear(100, 2, key=keys[2])
        self.log_variance = eqx.nn.Linear(100, 2, key=keys[3])

    def __call__(self, view: View) -> dist.Distribution:
        hidden = jax.nn.relu(self.body(jax.nn.softmax(view.scores.reshape(-1))))
        for_loc, for_scale = jnp.split(jax.nn.relu(self.split(hidden)), 2)
        return dist.Normal(jnp.tanh(self.loc(for_loc)), jnp.exp(0.5 * self.log_variance(for_scale))).to_event(1)


class Where(eqx.Module):
    """q(where_t | frame_t, where_{t±1}, images): one digit after another, each on a map without those placed before."""

    head: Any
    mean: Array  # the template until there are images; never trained

    def prepare(self, data: Data, globals: Any, model: Any) -> dict[str, Array]:
        """Correlation maps of all frames, and of the templates with each other."""
        mean = jnp.broadcast_to(stop_gradient(self.mean), (model.num_digits, DIGIT, DIGIT))
        templates = mean if globals is None else globals
        digit, earlier = np.tril_indices(model.num_digits, -1)
        cross = cross_correlate(templates, self.head.stride)[earlier, digit]
        return {
            "maps": correlate(data["frames"], templates, self.head.stride),
            "cross": jnp.broadcast_to(cross, (data["frames"].shape[0], *cross.shape)),
        }

    def __call__(self, data: Any, t: Array, previous: Any, following: Any, globals: Any, model: Any) -> None:
        self._propose(data, globals, model.num_digits, [previous, following])

    def initial(self, data: Any, t: Array, previous: Any, globals: Any, model: Any) -> None:
        straight_on = bounce(2 * previous.value - previous.before.value)
        ahead = jnp.where(previous.before.exists, straight_on, previous.value)
        self._propose(data, globals, model.num_digits, [Neighbour(ahead, previous.exists)], is_first=True)

    def _propose(
        self, data: Any, images: Any, num_digits: int, expected: list[Neighbour], is_first: bool = False
    ) -> None:
        def part(placed: Any) -> dist.Distribution:
            digit = len(placed)
            scores = data.prepared["maps"][digit]
            pairs = data.prepared["cross"][digit * (digit - 1) // 2 :]  # with the digits before it
            for pair, position in zip(pairs[:digit], placed, strict=True):
                scores -= explained(pair, position, self.head.stride)

            def look(position: Array) -> Array:
                seen = crop(data["frames"], position)
                for earlier, other in enumerate(placed):
                    seen -= moved(images[earlier], other - position)
                return seen

            own = [(place.value[digit], place.exists) for place in expected]
            return self.head(View(scores, own, is_first, None if images is None else images[digit], look))

        numpyro.sample("where", Autoregressive(part, num_digits))


def crops(data: Data, latents: Values) -> Float[Array, "time digit 28 28"]:
    """The part of every frame at the position of every digit."""
    return jax.vmap(jax.vmap(crop, (None, 0)))(data["frames"], latents["where"])


class What(eqx.Module):
    """q(what | frames, where): a network guesses the code of each digit's image, then steps in the model improve it.

    Overlapping digits only make a frame brighter, so the image of a digit is estimated by a mean over time in which dark
    pixels count more. The first steps fit that image, which cropping has blurred, each with a line search; the last ones
    fit the frames themselves, with all digits in place. The curvature at the last step is the precision of the proposal.
    """

    encoder: eqx.nn.Sequential
    log_darkness: Array
    log_scale: Array  # of the standard deviation, relative to the one from the curvature

    def __init__(self, *, key: Key[Array, ""]):
        self.encoder = layers((DIGIT**2, 400, 200, CODE), key=key)
        self.log_darkness, self.log_scale = jnp.log(2.0), jnp.log(1.5)

    def __call__(self, data: Data, latents: Values, model: Any) -> None:
        cropped = crops(data, latents)
        shares = jnp.where(data.mask["time"][:, None, None, None], jnp.exp(-jnp.exp(self.log_darkness) * cropped), 0.0)
        seen = jnp.sum(shares * cropped, axis=0) / jnp.sum(shares, axis=0)
        guesses = jax.vmap(self.encoder)(seen.reshape(-1, DIGIT**2))
        # Optimisation erases the starting point, so no gradient is taken through it.
        codes, factors = _climb(*stop_gradient((guesses, seen, latents["where"])), data, model)
        deviation = jnp.exp(self.log_scale)

        def part(drawn: Any) -> dist.Distribution:
            digit = len(drawn)
            guess = dist.Normal(guesses[digit], 1.0).to_event(1)
            return RefinedGuess(PrecisionNormal(codes[digit], factors[digit] / deviation), guess)

        numpyro.sample("what", Autoregressive(part, model.num_digits))


def _climb(
    guesses: Float[Array, "digit 10"], seen: Float[Array, "digit 28 28"], where: Array, data: Data, model: Any
) -> tuple[Float[Array, "digit 10"], Float[Array, "digit 10 10"]]:
    """Optimise the codes of all digits from their guesses; also the Cholesky factors of the last curvature."""
    real = data.mask["time"]
    count = jnp.sum(real)

    def of_frames(images: Array) -> Array:
        """log p(frames | images, where)."""
        by_frame = jax.vmap(lambda state, frame: model.emission(state, images).log_prob(frame))
        return jnp.sum(jnp.where(real, by_frame(where, data["frames"]), 0.0))

    def of_seen(code: Array, seen: Array) -> Array:
        """log p of a code and of its digit's estimated image, counted once per frame."""
        logits = model.decoder(code)
        return count * jnp.sum(seen.reshape(-1) * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(code**2)

    codes, factors = guesses, jnp.zeros((model.num_digits, CODE, CODE))
    for number in range(NUM_STEPS):
        logits, slopes = jax.vmap(_linearised, (0, None))(codes, model.decoder)
        images = jax.nn.sigmoid(logits).reshape(seen.shape)
        is_rough = number < NUM_ROUGH
        pulls = count * (seen - images) if is_rough else jax.grad(of_frames)(images) * images * (1 - images)
        steps, factors = jax.vmap(_uphill, (0, 0, 0, 0, None))(codes, pulls, images, slopes, count)
        codes = jax.vmap(partial(_as_far_as_it_helps, of_seen))(codes, steps, seen) if is_rough else codes + steps
    return codes, factors


def _linearised(code: Array, decoder: Any) -> tuple[Array, Float[Array, "10 784"]]:
    """The logits of an image and their derivatives along every axis of the code."""
    logits, push = jax.linearize(decoder, code)
    return logits, jax.vmap(push)(AXES)


def _uphill(code: Array, pull: Array, image: Array, slope: Array, count: Array) -> tuple[Array, Array]:
    """A step of Fisher scoring for the gradient `pull` of the logits, and the Cholesky factor of the curvature."""
    spread = (image * (1 - image)).reshape(-1)
    factor = cholesky(count * (slope * spread) @ slope.T + AXES)
    step = solve_triangular(factor, solve_triangular(factor, slope @ pull.reshape(-1) - code), transposed=True)
    return step * jnp.minimum(1.0, LONGEST / jnp.linalg.norm(step)), factor


def _as_far_as_it_helps(value: Callable[[Array, Array], Array], code: Array, step: Array, seen: Array) -> Array:
    """The code after the best fraction of a step; if all fractions make it worse, the code stays."""
    ends = code + FRACTIONS[:, None] * step
    return ends[jnp.argmax(jax.vmap(value, (0, None))(ends, seen))]


class PaperWhat(eqx.Module):
    """q(what | frames, where): cropped frames through the paper's network, pooled over time, one Normal per digit.

    Pooling by the mean generalises to videos of other lengths; the paper's text has the sum, `pool=statistics.pool`.
    """

    encoder: eqx.nn.Sequential
    head: eqx.nn.Linear
    pool: Callable[[Array, Array], Array] = eqx.field(static=True)

    def __init__(self, *, key: Key[Array, ""], pool: Callable[[Array, Array], Array] = mean_pool):
        self.pool = pool
        key_encoder, key_head = jax.random.split(key)
        self.encoder = layers((DIGIT**2, 400, 200), key=key_encoder)
        self.head = eqx.nn.Linear(200, 2 * CODE, key=key_head)

    def __call__(self, data: Data, latents: Values, model: Any) -> None:
        cropped = crops(data, latents)
        rows = cropped.reshape(-1, DIGIT**2)
        hidden = jax.nn.relu(jax.vmap(self.encoder)(rows)).reshape(*cropped.shape[:2], -1)
        pooled = self.pool(hidden, data.mask["time"])
        loc, log_variance = jnp.split(jax.vmap(self.head)(pooled), 2, axis=-1)
        numpyro.sample("what", dist.Normal(loc, jnp.exp(0.5 * log_variance)).to_event(2))
