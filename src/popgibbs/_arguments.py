"""Checks of users' arguments: whole numbers and random keys, with errors in one sentence."""

from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp

from popgibbs._typing import PRNGKey


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """A count as a Python integer; JAX would trace a NumPy integer instead of treating it as static."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"{name}={value!r} must be a whole number")
    if least is not None and value < least:
        raise ValueError(f"{name}={value} must be at least {least}")
    return int(value)


def as_key(key: Any) -> PRNGKey:
    """One typed random key; a legacy `jax.random.PRNGKey(0)` becomes the typed key with the same numbers."""
    if not (hasattr(key, "dtype") and hasattr(key, "shape")):
        raise ValueError(f"the key must be a random key such as jax.random.key(0), not {_shortened(key)}")
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        try:
            key = jax.random.wrap_key_data(jnp.asarray(key))
        except TypeError:
            raise ValueError(
                f"the key must be a random key such as jax.random.key(0), not numbers of dtype {key.dtype} and shape "
                f"{key.shape}"
            ) from None
    if key.shape != ():
        raise ValueError(f"the key must be a single random key, but it has shape {key.shape}; pass one of them")
    return key


def _shortened(value: Any) -> str:
    return f"{value!r}" if isinstance(value, (int, float, str, type(None))) else f"a {type(value).__name__}"
