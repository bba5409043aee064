"""Bouncing digits: translation and correlation against slow, simple code, and the simulator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage, signal

from popgibbs.paper.bmnist.data import SPEED, simulate
from popgibbs.paper.bmnist.images import (
    CANVAS,
    DIGIT,
    RANGE,
    compose,
    correlate,
    crop,
    cross_correlate,
    explained,
    places,
    pooled,
    to_pixels,
    to_position,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

GENERATOR = np.random.default_rng(0)
IMAGES = GENERATOR.uniform(size=(3, DIGIT, DIGIT)).astype(np.float32)
FRAME = GENERATOR.uniform(size=(CANVAS, CANVAS)).astype(np.float32)


def placed(image: np.ndarray, position: np.ndarray) -> np.ndarray:
    """An image placed on a canvas by SciPy's shift with linear interpolation."""
    canvas = np.zeros((CANVAS + 2 * DIGIT,) * 2)
    canvas[DIGIT : 2 * DIGIT, DIGIT : 2 * DIGIT] = image
    horizontal, vertical = (np.asarray(position) + 1) / 2 * RANGE
    return ndimage.shift(canvas, (vertical, horizontal), order=1)[DIGIT:-DIGIT, DIGIT:-DIGIT]


@pytest.mark.parametrize("position", [(-1.0, -1.0), (1.0, 0.5), (0.123, -0.777), (1.2, -1.3)])
def test_an_image_is_placed_right_and_down_and_cut_off_at_the_edges(position):
    np.testing.assert_allclose(
        compose(jnp.asarray(IMAGES[:1]), jnp.array([position])), placed(IMAGES[0], np.array(position)), atol=2e-5
    )


def test_a_frame_is_the_clipped_sum_of_its_digits():
    where = np.array([[0.1, 0.2], [0.15, 0.1], [-0.5, 0.9]])
    expected = np.clip(sum(placed(image, position) for image, position in zip(IMAGES, where, strict=True)), 0, 1)
    assert np.any(expected == 1)
    np.testing.assert_allclose(compose(jnp.asarray(IMAGES), jnp.asarray(where)), expected, atol=2e-5)


def test_a_crop_recovers_the_placed_image():
    for position in to_position(jnp.array([[0.0, 0.0], [68.0, 5.0], [31.0, 60.0]])):
        frame = compose(jnp.asarray(IMAGES[:1]), position[None])
        np.testing.assert_allclose(crop(frame, position), IMAGES[0], atol=2e-5)


def test_maps_are_correlations_and_peak_where_the_template_is():
    maps = correlate(jnp.asarray(FRAME[None]), jnp.asarray(IMAGES), 1)
    for scores, image in zip(maps[0], IMAGES, strict=True):
        np.testing.assert_allclose(scores, signal.correlate2d(FRAME, image, mode="valid"), rtol=1e-4)
    position = to_position(jnp.array([[40.0, 12.0]]))
    scores = correlate(compose(jnp.asarray(IMAGES[:1]), position)[None], jnp.asarray(IMAGES[:1]), 1)[0, 0]
    assert np.unravel_index(np.argmax(scores), scores.shape) == (12, 40)


@pytest.mark.parametrize("stride", [1, 2])
def test_removing_a_digit_from_the_map_is_subtracting_it_from_the_frame(stride):
    position = to_position(jnp.array([31.0, 52.5]) if stride == 1 else jnp.array([30.0, 52.0]))
    frame = compose(jnp.asarray(IMAGES[:1]), position[None])
    templates = jnp.asarray(IMAGES)
    cross = cross_correlate(templates, stride)
    before = correlate(jnp.asarray(FRAME[None]), templates, stride)[0]
    after = correlate(jnp.asarray(FRAME[None]) - frame, templates, stride)[0]
    for digit in range(3):
        np.testing.assert_allclose(
            before[digit] - explained(cross[0, digit], position, stride), after[digit], rtol=1e-4, atol=2e-3
        )


def test_a_stride_keeps_the_units_of_the_map():
    smooth = ndimage.gaussian_filter(FRAME, 4)
    template = ndimage.gaussian_filter(IMAGES[0], 4)
    fine, coarse = (correlate(jnp.asarray(smooth[None]), jnp.asarray(template[None]), stride)[0, 0] for stride in (1, 2))
    np.testing.assert_allclose(fine[::2, ::2], coarse, rtol=1e-2)
    np.testing.assert_allclose(to_pixels(places(2)), np.arange(0, RANGE + 1, 2), atol=1e-5)
    np.testing.assert_allclose(pooled(jnp.asarray(FRAME), 2)[3, 5], FRAME[6:8, 10:12].mean(), rtol=1e-6)


def test_digits_move_straight_ahead_and_bounce_off_the_edges():
    """At every step, an axis is reflected where it would leave the canvas."""
    (data, truth) = simulate(jax.random.key(1), jnp.asarray(255 * IMAGES), num_digits=2, num_frames=50)
    where = np.asarray(truth["where"])
    assert data["frames"].shape == (50, CANVAS, CANVAS)
    assert np.all(np.abs(where) <= 1)
    velocity, position = where[1] - where[0], where[0]
    np.testing.assert_allclose(np.linalg.norm(velocity, axis=-1), SPEED, rtol=1e-5)  # no digit bounces at once
    for t in range(49):
        position = position + velocity
        over = np.abs(position) > 1
        position = np.where(over, 2 * np.sign(position) - position, position)
        velocity = np.where(over, -velocity, velocity)
        np.testing.assert_allclose(where[t + 1], position, atol=1e-4)


def test_frames_show_the_digits_at_whole_pixels():
    data, truth = simulate(jax.random.key(1), jnp.asarray(255 * IMAGES), num_digits=1, num_frames=3)
    for frame, where in zip(data["frames"], truth["where"], strict=True):
        whole = to_position(jnp.round(to_pixels(where[0])))
        np.testing.assert_allclose(frame, placed(truth["images"][0], whole), atol=2e-5)
