"""Damage to the bytes of any file."""

from collections.abc import Callable
from typing import Any

import numpy as np

Random = np.random.Generator


def flipped(random: Random, content: bytes) -> bytes:
    """Flip a few bits."""
    damaged = bytearray(content)
    for _ in range(int(random.integers(1, 9)) if damaged else 0):
        damaged[random.integers(len(damaged))] ^= 1 << int(random.integers(8))
    return bytes(damaged)


def truncated(random: Random, content: bytes) -> bytes:
    return content[: random.integers(len(content))] if content else content


def zeroed(random: Random, content: bytes) -> bytes:
    begin, end = _range(random, content)
    return content[:begin] + bytes(end - begin) + content[end:]


def scrambled(random: Random, content: bytes) -> bytes:
    begin, end = _range(random, content)
    return content[:begin] + random.bytes(end - begin) + content[end:]


def shifted(random: Random, content: bytes) -> bytes:
    """Drop some bytes, or repeat them."""
    begin, end = _range(random, content)
    return content[:begin] + content[end:] if random.random() < 0.5 else content[:end] + content[begin:]


def exchanged(random: Random, content: bytes) -> bytes:
    """Swap the parts before and after a position."""
    begin, _ = _range(random, content)
    return content[begin:] + content[:begin]


def _range(random: Random, content: bytes) -> tuple[int, int]:
    begin = int(random.integers(len(content) + 1))
    return begin, min(len(content), begin + int(2 ** random.uniform(0, 10)))


OF_BYTES: dict[str, Callable[[Random, bytes], bytes]] = {
    "bits flipped": flipped,
    "truncated": truncated,
    "range zeroed": zeroed,
    "range scrambled": scrambled,
    "bytes lost or doubled": shifted,
    "halves exchanged": exchanged,
}

WIDE = (2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 10**12, 2**63 - 1, 2**64, 10**30)
EXTREME_NUMBERS = (0, 1, -1, 2, 7, 255, *WIDE, -(10**12))
STRANGE = (None, True, 0.5, -0.0, float("nan"), float("inf"), 1e308, "", "x", "∞\n", [], {}, [[[]]], [1e9])
EXTREME_VALUES = (*EXTREME_NUMBERS, *STRANGE)


def chosen(random: Random, values: tuple[Any, ...]) -> Any:
    """One of the values, with its type; NumPy's `choice` would convert them to an array."""
    return values[int(random.integers(len(values)))]
