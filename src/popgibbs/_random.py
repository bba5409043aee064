"""Random keys whose bits are those of JAX's default generator, in programs that compile and run faster.

JAX's Threefry on CPU is a loop over rounds, which XLA compiles anew at every use: 0.1 to 0.6 seconds each, for the dozens
of draws, splits and folds in a sampler. Here the rounds are written out, so they are a few dozen elementwise operations
that fuse with whatever uses the bits. Functions of the library convert the keys that they use; the numbers stay the same.
Users' functions get keys of JAX's own kind, because some functions, such as `jax.random.poisson`, take no other.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax.extend.random import define_prng_impl
from jaxtyping import Array, UInt32

T = TypeVar("T")

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_LARGE = 64  # elements of one draw, from which on computing them twice costs more than compiling them twice
# Earlier versions of XLA took minutes to compile a training step in which the rounds are written out.
_COMPILES_FAST = tuple(int(number) for number in jaxlib.__version__.split(".")[:2]) >= (0, 10)
_PARITY = np.uint32(0x1BD11BDA)


@partial(jax.jit, static_argnames="groups")  # so that uses of one shape are traced and lowered once
def _threefry(key: UInt32[Array, "2"], high: Array, low: Array, groups: int) -> tuple[Array, Array]:
    """Threefry-2x32 (Salmon et al., 2011) of the counters `high` and `low`; each group has four rounds."""
    words = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    high, low = high + words[0], low + words[1]
    for group in range(groups):
        for rotation in _ROTATIONS[group % 2]:
            high = high + low
            low = high ^ ((low << np.uint32(rotation)) | (low >> np.uint32(32 - rotation)))
        high = high + words[(group + 1) % 3]
        low = low + words[(group + 2) % 3] + np.uint32(group + 1)
    return high, low


def _counters(shape: tuple[int, ...]) -> tuple[Array, Array]:
    """The numbers of the elements of an array, as two words each; arrays here have fewer than 2³² elements."""
    assert prod(shape) < 2**32
    low = jax.lax.iota(jnp.uint32, prod(shape)).reshape(shape)
    return jnp.zeros_like(low), low


def _halves(words: Array) -> list[Array]:
    flat = words.reshape(-1)
    return [flat[: flat.size // 2], flat[flat.size // 2 :]]


def _side_by_side(high: Array, low: Array) -> Array:
    """The two words of each element along a last axis.

    XLA does not fuse a concatenation into what uses it, so the rounds are not repeated there. Elementwise operations
    would be, barrier or not: three times as many rounds were compiled.
    """
    return jnp.stack([high, low], axis=-1)


def _seed(seed: Array) -> UInt32[Array, "2"]:
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


def _implementation(name: str, tag: str, groups: int) -> Any:
    def split(key: UInt32[Array, "2"], shape: tuple[int, ...]) -> UInt32[Array, "*shape 2"]:
        return _side_by_side(*_threefry(key, *_counters(shape), groups))

    def fold_in(key: UInt32[Array, "2"], number: Any) -> UInt32[Array, "2"]:
        number = jnp.asarray(number).astype(jnp.uint32)
        return _side_by_side(*_threefry(key, jnp.zeros_like(number), number, groups))

    def words(key: UInt32[Array, "2"], shape: tuple[int, ...]) -> tuple[Array, Array]:
        high, low = _counters(shape)
        if prod(shape) < _LARGE:
            return _threefry(key, high, low, groups)
        # In two parts, because a concatenation is computed once, and not again in everything that uses the bits.
        parts = [_threefry(key, *part, groups) for part in zip(_halves(high), _halves(low), strict=True)]
        first, second = (jnp.concatenate(pair).reshape(shape) for pair in zip(*parts, strict=True))
        return first, second

    def random_bits(key: UInt32[Array, "2"], bit_width: int, shape: tuple[int, ...]) -> Array:
        high, low = words(key, shape)
        if bit_width == 64:
            return (high.astype(jnp.uint64) << np.uint64(32)) | low.astype(jnp.uint64)
        return (high ^ low).astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[bit_width])

    return define_prng_impl(
        key_shape=(2,), seed=_seed, split=split, random_bits=random_bits, fold_in=fold_in, name=name, tag=tag
    )


_UNROLLED = _implementation("threefry2x32_unrolled", "fryu", groups=5)  # the 20 rounds of JAX's default
_SHORT = _implementation("threefry2x32_short", "frys", groups=2)


def key_for_checks(seed: int) -> Array:
    """A key for draws that check a sampler: eight rounds are random enough for that, and compile faster than twenty."""
    return jax.random.key(seed, impl=_SHORT if _COMPILES_FAST else None)


def unrolled(key: Array) -> Array:
    """The key, or array of keys, with JAX's default generator replaced by the one here; other generators stay."""
    if not _COMPILES_FAST or jax.random.key_impl(key) != "threefry2x32":
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_UNROLLED)


def standard(key: Array) -> Array:
    """The key, or array of keys, with JAX's default generator instead of the one here; others stay."""
    if jax.random.key_impl(key) not in (_UNROLLED, _SHORT):
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl="threefry2x32")


def with_key(function: Callable[[Array], T], key: Array) -> T:
    """The result of a user's function of a key, with the faster generator unless it needs JAX's own."""
    try:
        return function(unrolled(key))
    except NotImplementedError:
        return function(standard(key))
