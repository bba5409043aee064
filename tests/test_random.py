"""Random keys that compile fast have exactly the bits of JAX's default generator."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from popgibbs._random import unrolled

KEY = jax.random.key(7)
DRAWS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "uniform": jax.random.uniform,
    "normal": lambda key: jax.random.normal(key, (5, 3)),
    "gamma": lambda key: jax.random.gamma(key, 2.5, (4,)),
    "categorical": lambda key: jax.random.categorical(key, jnp.zeros((4, 3))),
    "permutation": lambda key: jax.random.permutation(key, 10),
    "integers": lambda key: jax.random.randint(key, (6,), 0, 10),
    "bytes": lambda key: jax.random.bits(key, (5,), jnp.uint8),
    "short words": lambda key: jax.random.bits(key, (5,), jnp.uint16),
    "split": lambda key: jax.random.key_data(jax.random.split(key, (3, 2))),
    "folds": lambda key: jnp.stack([jax.random.key_data(jax.random.fold_in(key, n)) for n in (0, 1, 2**31 - 1)]),
    "many keys": lambda key: jax.vmap(lambda key: jax.random.normal(key, (3,)))(jax.random.split(key, 4)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_the_default_generator(name: str) -> None:
    assert jax.random.key_impl(unrolled(KEY)) != jax.random.key_impl(KEY)
    np.testing.assert_array_equal(DRAWS[name](unrolled(KEY)), DRAWS[name](KEY))


def test_draws_in_double_precision_are_too() -> None:
    with jax.enable_x64(True):
        wanted, found = (jax.random.normal(key, (3,), jnp.float64) for key in (KEY, unrolled(KEY)))
    np.testing.assert_array_equal(found, wanted)


def test_other_generators_are_left_alone() -> None:
    key = jax.random.key(0, impl="rbg")
    assert unrolled(key) is key
    assert jax.random.key_impl(unrolled(unrolled(KEY))) == jax.random.key_impl(unrolled(KEY))
