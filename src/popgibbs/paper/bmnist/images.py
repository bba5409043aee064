"""Small images on a canvas by pure translation: placing, cropping, correlating.

A position p ∈ [−1, 1]² (horizontal, vertical) puts the top left pixel of a digit at (p + 1)/2 · 68 pixels. Between pixels
images are interpolated bilinearly. A translation is then one small matrix per axis, so that placing, cropping and their
gradients are matrix products.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

CANVAS, DIGIT = 96, 28
WINDOW = DIGIT + 1  # the pixels, along an axis, that an image between pixels touches
RANGE = CANVAS - DIGIT  # the number of pixels that a digit can move


def to_pixels(position: Float[Array, "... 2"]) -> Float[Array, "... 2"]:
    return (position + 1) / 2 * RANGE


def to_position(pixels: Float[Array, "..."]) -> Float[Array, "..."]:
    return pixels / RANGE * 2 - 1


def bounce(path: Float[Array, "..."]) -> Float[Array, "..."]:
    """A straight path folded back into [−1, 1] at every crossing of an edge."""
    phase = jnp.mod(path + 1, 4)
    return jnp.where(phase <= 2, phase - 1, 3 - phase)


def shift(offset: Float[Array, ""], rows: int, columns: int) -> Float[Array, "rows columns"]:
    """The matrix that shifts a vector by an offset in pixels: entry (i, j) is the share of pixel j that falls on i."""
    return jnp.maximum(1 - jnp.abs(_distances(rows, columns) - offset), 0.0)


@cache
def _distances(rows: int, columns: int) -> np.ndarray:
    """One array for all uses, so that the compiler recognises common subexpressions."""
    return (np.arange(rows)[:, None] - np.arange(columns)).astype(np.float32)


def _window(position: Float[Array, " 2"]) -> tuple[Array, Float[Array, "29 28"], Float[Array, "29 28"]]:
    """The top left pixel of the window that an image covers, and the shifts of its rows and columns inside it.

    Windows stay inside the canvas: an image that sticks out is shifted out of its window.
    """
    pixels = to_pixels(position)
    corner = jnp.clip(jnp.floor(pixels), 0, CANVAS - WINDOW)
    horizontal, vertical = pixels - corner
    return corner.astype(jnp.int32)[::-1], shift(vertical, WINDOW, DIGIT), shift(horizontal, WINDOW, DIGIT)


def compose(images: Float[Array, "digit 28 28"], where: Float[Array, "digit 2"]) -> Float[Array, "96 96"]:
    """A frame of placed images, their sum clipped to [0, 1]."""
    corners, rows, columns = jax.vmap(_window)(where)
    placed = rows @ images @ jnp.swapaxes(columns, 1, 2)
    whole_windows = jax.lax.ScatterDimensionNumbers((1, 2), (), (0, 1))
    canvas = jnp.zeros((CANVAS, CANVAS), placed.dtype)
    return jnp.clip(jax.lax.scatter_add(canvas, corners, placed, whole_windows, mode="promise_in_bounds"), 0.0, 1.0)


def crop(frame: Float[Array, "96 96"], position: Float[Array, " 2"]) -> Float[Array, "28 28"]:
    """The part of a frame that an image at that position covers: the transpose of placing it."""
    corner, rows, columns = _window(position)
    return rows.T @ jax.lax.dynamic_slice(frame, corner, (WINDOW, WINDOW)) @ columns


def moved(image: Float[Array, "28 28"], by: Float[Array, " 2"]) -> Float[Array, "28 28"]:
    """An image as it appears in another window, relative to which it is displaced by `by`."""
    horizontal, vertical = by / 2 * RANGE
    return shift(vertical, DIGIT, DIGIT) @ image @ shift(horizontal, DIGIT, DIGIT).T


def pooled(images: Float[Array, "... side side"], stride: int) -> Float[Array, "... small small"]:
    """Averages over squares of `stride` × `stride` pixels."""
    side = images.shape[-1] // stride
    return images.reshape(*images.shape[:-2], side, stride, side, stride).mean(axis=(-3, -1))


def num_offsets(stride: int) -> int:
    """The side of a correlation map: whole positions, every `stride` pixels along an axis."""
    return RANGE // stride + 1


@cache
def places(stride: int) -> np.ndarray:
    """The positions that the entries of a correlation map stand for, along one axis."""
    return (stride * np.arange(num_offsets(stride)) / RANGE * 2 - 1).astype(np.float32)


def correlate(
    frames: Float[Array, "time 96 96"], templates: Float[Array, "digit 28 28"], stride: int
) -> Float[Array, "time digit offset offset"]:
    """Σ_j frame[o + j] template[j] at every offset o at which the template is inside the frame.

    With a stride above one pixel, the correlation of the pooled images in the units of the full ones.
    """
    frames, templates = pooled(frames, stride), pooled(templates, stride)
    side, kept = frames.shape[-1], num_offsets(stride)
    # No kept offset wraps around: the frame is as long as the last offset plus the template.
    spectra = jnp.fft.rfft2(frames)[:, None] * jnp.conj(jnp.fft.rfft2(templates, (side, side)))
    return stride**2 * jnp.fft.irfft2(spectra, (side, side))[..., :kept, :kept]


def cross_correlate(templates: Float[Array, "digit 28 28"], stride: int) -> Float[Array, "digit digit reach reach"]:
    """Σ_i a[i] b[i − δ] of every pair of templates a, b, at every offset δ at which they overlap."""
    templates = pooled(templates, stride)
    furthest = templates.shape[-1] - 1
    size = 2 * furthest + 2  # large enough that no offset wraps around
    spectra = jnp.fft.rfft2(templates, (size, size))
    products = jnp.fft.irfft2(spectra[:, None] * jnp.conj(spectra[None]), (size, size))
    reach = 2 * furthest + 1
    return stride**2 * jnp.roll(products, (furthest, furthest), axis=(-2, -1))[..., :reach, :reach]


def explained(
    cross: Float[Array, "reach reach"], position: Float[Array, " 2"], stride: int
) -> Float[Array, "offset offset"]:
    """The contribution of a placed template a to the correlation map of b, from their cross-correlation.

    Subtracting it from the map is the same as subtracting the placed image from the frame before correlating.
    """
    reach, kept = cross.shape[0], num_offsets(stride)
    horizontal, vertical = to_pixels(position) / stride - reach // 2
    return shift(vertical, kept, reach) @ cross @ shift(horizontal, kept, reach).T
