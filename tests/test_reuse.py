"""Functions are equal in content only if they behave alike."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from popgibbs._reuse import computed_once, content, reused


def scaled(by: Any) -> Callable[[Any], Any]:
    return lambda value: by * value


def also_scaled(by: Any) -> Callable[[Any], Any]:
    return lambda value: by * value


class Counted:
    def __init__(self, start: int):
        self.start = start

    def count(self, value: int) -> int:
        return self.start + value


COUNTED = Counted(1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (scaled(2.0), scaled(2.0)),
        (scaled(np.arange(3)), scaled(np.arange(3))),
        (scaled(jnp.arange(3)), scaled(jnp.arange(3))),
        (partial(scaled(2.0), 3), partial(scaled(2.0), 3)),
        (optax.adam(1e-3), optax.adam(1e-3)),
        (optax.adam(optax.cosine_decay_schedule(1e-2, 100)), optax.adam(optax.cosine_decay_schedule(1e-2, 100))),
        (COUNTED.count, COUNTED.count),
        ({"a": [1, 2.0]}, {"a": [1, 2.0]}),
        (jax.random.key(0), jax.random.key(0)),
    ],
)
def test_equal_content(one: Any, other: Any) -> None:
    assert content(one) == content(other)
    assert hash(content(one)) == hash(content(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (scaled(2.0), scaled(3.0)),
        (scaled(2.0), scaled(2)),
        (scaled(0.0), scaled(-0.0)),
        (scaled(2.0), also_scaled(2.0)),
        (scaled(np.arange(3)), scaled(np.arange(3.0))),
        (scaled(np.arange(4)), scaled(np.arange(4).reshape(2, 2))),
        (scaled(scaled(2.0)), scaled(scaled(3.0))),
        (partial(scaled(2.0), 3), partial(scaled(2.0), 4)),
        (optax.adam(1e-3), optax.adam(2e-3)),
        (optax.adam(1e-3), optax.adam(1e-3, b1=0.8)),
        (optax.adam(optax.cosine_decay_schedule(1e-2, 100)), optax.adam(optax.cosine_decay_schedule(1e-2, 200))),
        (Counted(1).count, Counted(1).count),  # an object may change, so it is compared by identity
        ([1, 2], (1, 2)),
        (True, 1),
        (jax.random.key(0), jax.random.key(1)),
    ],
)
def test_different_content(one: Any, other: Any) -> None:
    assert content(one) != content(other)


def test_a_function_may_refer_to_itself() -> None:
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * factorial(n - 1)

    assert content(factorial) == content(factorial)


def test_results_are_made_once_per_content() -> None:
    made: list[Any] = []

    def make(function: Any) -> int:
        made.append(function)
        return len(made)

    assert [reused(make, scaled(2.0)), reused(make, scaled(3.0)), reused(make, scaled(2.0))] == [1, 2, 1]


class Slow:
    """Its property waits for an event, as a property that runs a NumPyro program may wait for another thread."""

    def __init__(self, event: threading.Event):
        self.event = event
        self.num_computed = 0

    @computed_once
    def value(self) -> int:
        self.num_computed += 1
        assert self.event.wait(timeout=60)
        return 3


def test_a_property_is_computed_once_and_holds_up_no_other_object() -> None:
    """The property of one object can wait for something that a thread does after it used that of another object."""
    slow, quick = Slow(threading.Event()), Slow(threading.Event())
    quick.event.set()
    waiting = threading.Thread(target=lambda: slow.value)
    waiting.start()
    while not slow.num_computed:
        time.sleep(0.001)
    other = threading.Thread(target=lambda: quick.value, daemon=True)
    other.start()
    other.join(timeout=10)
    assert not other.is_alive()
    slow.event.set()
    waiting.join()
    assert (slow.value, quick.value) == (3, 3)
    assert (slow.num_computed, quick.num_computed) == (1, 1)
