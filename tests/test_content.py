"""Functions are equal in content only if they behave alike."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

from popgibbs._content import content, strict_content


def scaled(by: Any) -> Callable[[Any], Any]:
    return lambda value: by * value


def also_scaled(by: Any) -> Callable[[Any], Any]:
    return lambda value: by * value


class Counted:
    def __init__(self, start: int):
        self.start = start

    def count(self, value: int) -> int:
        return self.start + value


@dataclass(frozen=True)
class Frozen:
    start: int

    def add(self, value: int) -> int:
        return self.start + value


FACTOR = 2.0


def by_factor(value: float) -> float:
    return sum(FACTOR * number for number in (value,))


def twice_by_factor(value: float) -> float:
    return by_factor(by_factor(value))


MODES = pytest.mark.parametrize("of", [content, strict_content])


@MODES
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (scaled(2.0), scaled(2.0)),
        (scaled(np.arange(3)), scaled(np.arange(3))),
        (scaled(jnp.arange(3)), scaled(jnp.arange(3))),
        (partial(scaled(2.0), 3), partial(scaled(2.0), 3)),
        (optax.adam(1e-3), optax.adam(1e-3)),
        (optax.adam(optax.cosine_decay_schedule(1e-2, 100)), optax.adam(optax.cosine_decay_schedule(1e-2, 100))),
        (Frozen(1).add, Frozen(1).add),
        (scaled(dist.Normal(0.0, 1.0)), scaled(dist.Normal(0.0, 1.0))),
        (by_factor, by_factor),
        ({"a": [1, 2.0]}, {"a": [1, 2.0]}),
        (jax.random.key(0), jax.random.key(0)),
    ],
)
def test_equal_content(one: Any, other: Any, of: Callable[..., Any]) -> None:
    assert of(one) == of(other)
    assert hash(of(one)) == hash(of(other))


@MODES
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
        (Frozen(1).add, Frozen(2).add),
        (scaled(dist.Normal(0.0, 1.0)), scaled(dist.Normal(0.0, 2.0))),
        ([1, 2], (1, 2)),
        (True, 1),
        (jax.random.key(0), jax.random.key(1)),
    ],
)
def test_different_content(one: Any, other: Any, of: Callable[..., Any]) -> None:
    assert of(one) != of(other)


@MODES
@pytest.mark.parametrize("function", [by_factor, twice_by_factor, partial(by_factor, 2.0), lambda x: by_factor(x)])
def test_a_changed_global_changes_the_content(
    function: Any, of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = of(function)
    monkeypatch.setattr(f"{__name__}.FACTOR", 3.0)
    assert of(function) != before
    monkeypatch.undo()
    assert of(function) == before


def test_an_object_that_may_have_changed_is_equal_to_itself_only_where_jax_says_so_too() -> None:
    counted = Counted(1)
    assert content(counted.count) == content(counted.count)
    assert strict_content(counted.count) != strict_content(counted.count)


def test_a_function_may_refer_to_itself() -> None:
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * factorial(n - 1)

    assert content(factorial) == content(factorial)
