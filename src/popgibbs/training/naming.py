"""Names of arrays: from a tree to the arrays of a checkpoint by name, and back into a tree of the same structure."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

SAMPLER = "arrays"  # the part of a training state that is the sampler


class CheckpointError(Exception):
    """Raised when a checkpoint cannot be read or written, or belongs to a different sampler or run.

    Examples:
        >>> try:
        ...     sampler.load("nowhere")
        ... except pg.CheckpointError as error:
        ...     print(error)
        there is no directory nowhere
    """


def to_names(tree: Any) -> dict[str, Any]:
    """The arrays of a tree by their path, random keys as plain numbers."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): _plain(leaf) for path, leaf in leaves}


def from_names(arrays: Mapping[str, Any], target: Any, where: str, *, widen: bool = False) -> Any:
    """A tree like the target with the named arrays; names, shapes and dtypes must agree, and numbers must be finite.

    With `widen`, floats may be narrower than the target's, so that a float32 sampler loads under `jax_enable_x64`.
    """
    expected = to_names(target)
    if missing := sorted(set(expected) - set(arrays)):
        raise CheckpointError(
            f"{where} lacks '{missing[0]}' ({len(missing)} missing): it belongs to a different {_owner(missing[0])}"
        )
    if extra := sorted(set(arrays) - set(expected)):
        raise CheckpointError(
            f"{where} belongs to a different {_owner(extra[0])}: it holds '{extra[0]}', which this one does not"
        )
    for name, leaf in expected.items():
        _check_fit(name, np.asarray(arrays[name]), np.asarray(leaf), where, widen)
    leaves, structure = jax.tree_util.tree_flatten(target)
    return jax.tree_util.tree_unflatten(
        structure, [_like(arrays[name], leaf) for name, leaf in zip(expected, leaves, strict=True)]
    )


def _check_fit(name: str, array: np.ndarray, leaf: np.ndarray, where: str, widen: bool) -> None:
    if array.shape != leaf.shape:
        raise CheckpointError(
            f"{where} belongs to a different {_owner(name)}: '{name}' has shape {array.shape}, not {leaf.shape}"
        )
    widened = widen and array.dtype.kind == leaf.dtype.kind == "f" and np.can_cast(array.dtype, leaf.dtype)
    if array.dtype != leaf.dtype and not widened:
        raise CheckpointError(
            f"{where} belongs to a different {_owner(name)}: '{name}' has dtype {array.dtype}, not {leaf.dtype}"
        )
    # A number may be infinite where it is in the fresh sampler, such as the −inf of a mask.
    if part_of(name) == SAMPLER and np.any(~np.isfinite(array) & np.isfinite(leaf)):
        raise CheckpointError(f"{where} holds numbers in '{name}' that are not finite; choose an earlier checkpoint")


def part_of(name: str) -> str:
    """The part of the saved tree to which an array belongs."""
    return name.split("/")[0]


def _owner(name: str) -> str:
    """The owner of an array that does not fit."""
    return "optimiser" if part_of(name) == "optimiser" else "sampler"


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _like(array: Any, leaf: Any) -> Any:
    # Through the host, so that the array is not committed to the device that Orbax put it on.
    array = jax.numpy.asarray(np.asarray(array))
    if _is_key(leaf):
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf))
    return array.astype(jax.numpy.result_type(leaf))


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
