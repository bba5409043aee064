"""Saving and restoring with Orbax: arrays by name, always restored into a target, configuration and versions inside."""

import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

FORMAT = 1
SAMPLER = "arrays"  # the part of a training state that is the sampler
_PACKAGES = ("popgibbs", "jax", "jaxlib", "numpyro", "equinox", "optax")


class CheckpointError(Exception):
    """A checkpoint that cannot be read, or does not fit what it is restored into."""


def versions() -> dict[str, str]:
    return {package: version(package) for package in _PACKAGES}


def to_names(tree: Any) -> dict[str, Any]:
    """The arrays of a tree by their path, random keys as plain numbers."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): _plain(leaf) for path, leaf in leaves}


def _on_host(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """NumPy arrays: a checkpoint that knows of devices can only be read where there are the same ones."""
    return {name: np.asarray(array) for name, array in arrays.items()}


def from_names(arrays: Mapping[str, Any], target: Any, where: str) -> Any:
    """A tree like the target with the named arrays; names and shapes must agree."""
    expected = to_names(target)
    if missing := sorted(set(expected) - set(arrays)):
        raise CheckpointError(
            f"{where} lacks '{missing[0]}' ({len(missing)} arrays are missing): it is of another sampler"
        )
    within = {_part(name) for name in expected}
    if extra := sorted(name for name in set(arrays) - set(expected) if _part(name) in within):
        raise CheckpointError(f"{where} is of another sampler: it holds '{extra[0]}', which this one does not")
    for name, leaf in expected.items():
        if np.shape(arrays[name]) != np.shape(leaf):
            raise CheckpointError(
                f"{where} is of another sampler: '{name}' has shape {np.shape(arrays[name])}, not {np.shape(leaf)}"
            )
    leaves, structure = jax.tree_util.tree_flatten(target)
    return jax.tree_util.tree_unflatten(
        structure, [_like(arrays[name], leaf) for name, leaf in zip(expected, leaves, strict=True)]
    )


def _part(name: str) -> str:
    """The part of the saved tree that an array's name lies in."""
    return name.split("/")[0]


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _like(array: Any, leaf: Any) -> Any:
    # By way of the host, so that the array is not bound to the device that Orbax put it on.
    array = jax.numpy.asarray(np.asarray(array))
    if _is_key(leaf):
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf))
    return array.astype(jax.numpy.result_type(leaf))


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


class Checkpoints:
    """The checkpoints of one run in a directory, the newest two kept. Writing is atomic."""

    def __init__(self, directory: str | Path, configuration: Mapping[str, Any] | None = None):
        self.directory = Path(directory).absolute()
        self.configuration = dict(configuration or {})
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._manager = ocp.CheckpointManager(
                self.directory, options=ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
            )
        except OSError as error:
            raise CheckpointError(f"cannot write to {self.directory}: {error.strerror}") from None

    @property
    def latest(self) -> int | None:
        return self._manager.latest_step()

    def save(self, step: int, tree: Any, made_with: Mapping[str, str] | None = None) -> None:
        """Write the arrays of a tree as the checkpoint of a step, unless it is there.

        `made_with` are the versions behind them, by default those that are running.
        """
        if self.latest == step:
            return
        about = {"format": FORMAT, "versions": made_with or versions(), "configuration": self.configuration}
        arguments = ocp.args.Composite(
            arrays=ocp.args.StandardSave(_on_host(to_names(tree))), about=ocp.args.JsonSave(about)
        )
        self._manager.save(step, args=arguments)

    def restore(self, target: Any) -> Any:
        """The newest checkpoint as a tree like the target."""
        self._manager.wait_until_finished()
        arrays = read_arrays(self.directory)
        if all(_part(name) == SAMPLER for name in arrays):
            raise CheckpointError(f"{self.directory} holds a sampler without its training state, which cannot be resumed")
        return from_names(arrays, target, str(self.directory))

    def close(self) -> None:
        """Wait until everything is on disk."""
        self._manager.wait_until_finished()
        self._manager.close()


def _saved(directory: Path) -> list[Path]:
    """The checkpoints of a directory: writing is atomic, so one that has its final name is complete."""
    return [child for child in directory.iterdir() if child.name.isdigit()] if directory.is_dir() else []


def holds_run(directory: Path) -> bool:
    """Whether there is something to resume."""
    return bool(_saved(directory))


def _newest(directory: str | Path) -> Path:
    path = Path(directory).absolute()
    if not path.is_dir():
        raise CheckpointError(f"there is no directory {directory}")
    if not (saved := _saved(path)):
        raise CheckpointError(f"there is no checkpoint in {directory}")
    return max(saved, key=lambda child: int(child.name))


def _read(directory: str | Path, item: str, arguments: Any) -> Any:
    newest = _newest(directory)
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            return checkpointer.restore(newest, args=ocp.args.Composite(**{item: arguments}))[item]
    except (ValueError, KeyError, OSError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise CheckpointError(f"the checkpoint {newest} cannot be read: {reason}") from error


def read_about(directory: str | Path) -> dict[str, Any]:
    """The configuration, the versions and the step of a run's newest checkpoint."""
    about = _read(directory, "about", ocp.args.JsonRestore())
    if about.get("format") != FORMAT:
        raise CheckpointError(f"{directory} has format {about.get('format')}, this version of popgibbs reads {FORMAT}")
    return {**about, "step": int(_newest(directory).name)}


def read_arrays(directory: str | Path) -> dict[str, Any]:
    """All arrays of a run's newest checkpoint by name."""
    read_about(directory)  # refuses other formats
    return _read(directory, "arrays", ocp.args.StandardRestore())


def fingerprint(directory: str | Path) -> str:
    """A short text that differs between samplers with other arrays."""
    digest = hashlib.sha256()
    for name, array in sorted(read_arrays(directory).items()):
        digest.update(name.encode() + np.asarray(array).tobytes())
    return digest.hexdigest()[:16]


def export(directory: str | Path, out: str | Path) -> None:
    """Write the arrays of a run's sampler without its training state: a third of the size, to be passed on."""
    about, arrays = read_about(directory), read_arrays(directory)
    if Path(out).exists():
        raise CheckpointError(f"{out} exists already; choose another directory")
    exported = Checkpoints(out, about["configuration"])
    sampler = {name: array for name, array in arrays.items() if _part(name) == SAMPLER}
    exported.save(about["step"], sampler, about["versions"])
    exported.close()
    # Orbax notes here that it was done, and the path; a checkpoint with its final name is complete without.
    for note in Path(out).rglob("commit_success.txt"):
        note.unlink()
