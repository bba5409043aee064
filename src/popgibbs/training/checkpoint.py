"""Saving and restoring with Orbax: arrays by name, always restored into a target.

Beside the arrays of a step lies what is known about them (`about`): the configuration, the versions, what the run was
made with, the names, dtypes and shapes, and checksums of the arrays and of itself. Nothing that differs is used.
"""

import glob
import hashlib
import json
import logging
import math
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore

from popgibbs.training.lock import Lock
from popgibbs.training.provenance import refuse_changes

FORMAT = 2
SAMPLER = "arrays"  # the part of a training state that is the sampler
MOST_COMPRESSED = 2**15  # bytes that Zstandard gets out of one
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


def from_names(arrays: Mapping[str, Any], target: Any, where: str, *, widen: bool = False) -> Any:
    """A tree like the target with the named arrays; names, shapes and dtypes must agree, and numbers must be finite.

    With `widen`, floats may be narrower than the target's, as those of a sampler that is loaded under `jax_enable_x64`.
    """
    expected = to_names(target)
    if missing := sorted(set(expected) - set(arrays)):
        raise CheckpointError(
            f"{where} lacks '{missing[0]}' ({len(missing)} arrays are missing): it is of another {_owner(missing[0])}"
        )
    if extra := sorted(set(arrays) - set(expected)):
        raise CheckpointError(f"{where} is of another {_owner(extra[0])}: it holds '{extra[0]}', which this one does not")
    for name, leaf in expected.items():
        _check_fit(name, np.asarray(arrays[name]), np.asarray(leaf), where, widen)
    leaves, structure = jax.tree_util.tree_flatten(target)
    return jax.tree_util.tree_unflatten(
        structure, [_like(arrays[name], leaf) for name, leaf in zip(expected, leaves, strict=True)]
    )


def _check_fit(name: str, array: np.ndarray, leaf: np.ndarray, where: str, widen: bool) -> None:
    if array.shape != leaf.shape:
        raise CheckpointError(f"{where} is of another {_owner(name)}: '{name}' has shape {array.shape}, not {leaf.shape}")
    widened = widen and array.dtype.kind == leaf.dtype.kind == "f" and np.can_cast(array.dtype, leaf.dtype)
    if array.dtype != leaf.dtype and not widened:
        raise CheckpointError(f"{where} is of another {_owner(name)}: '{name}' has dtype {array.dtype}, not {leaf.dtype}")
    # A number may be infinite where that of the fresh sampler is, such as the −inf of a mask.
    if _part(name) == SAMPLER and np.any(~np.isfinite(array) & np.isfinite(leaf)):
        raise CheckpointError(f"{where} holds numbers in '{name}' that are not finite; choose an earlier checkpoint")


def _part(name: str) -> str:
    """The part of the saved tree that an array's name lies in."""
    return name.split("/")[0]


def _owner(name: str) -> str:
    """What an array that does not fit belongs to."""
    return "optimiser" if _part(name) == "optimiser" else "sampler"


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


class Checkpoint(NamedTuple):
    """A checkpoint as it was read."""

    path: Path
    about: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def step(self) -> int:
        return self.about["step"]

    @property
    def sampler(self) -> dict[str, np.ndarray]:
        """The arrays of the sampler, without a training state."""
        return {name: array for name, array in self.arrays.items() if _part(name) == SAMPLER}


class Checkpoints:
    """The checkpoints of one run in a directory, the newest two kept, written by one process at a time.

    Writing is atomic. `run` is what the run is made with, which a resumed one must agree with.
    """

    def __init__(
        self,
        directory: str | Path,
        configuration: Mapping[str, Any] | None = None,
        run: Mapping[str, Any] | None = None,
    ):
        self.directory = Path(directory).absolute()
        try:
            self.configuration = _as_json(dict(configuration or {}))
        except TypeError as error:
            raise ValueError(f"the configuration of a run is saved as JSON, but {error}") from None
        self.run = _as_json(dict(run or {}))
        self._read_back = False  # whether a checkpoint was, after saving
        self._discarded: list[int] = []  # steps after the restored one, which the run makes again
        with ExitStack() as stack:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                if jax.process_index() == 0:  # Orbax coordinates the other processes of a run
                    stack.callback(Lock(self.directory).release)
                path = stack.enter_context(_without_patterns(self.directory))
                # Not asynchronous: a save that fails then fails at its own step, and in this thread.
                options = ocp.CheckpointManagerOptions(
                    max_to_keep=2, create=True, cleanup_tmp_directories=True, enable_async_checkpointing=False
                )
                with _without_logs():  # of an old checkpoint that a killed process had begun to delete
                    self._manager = ocp.CheckpointManager(path, options=options)
            except BlockingIOError as error:
                raise CheckpointError(
                    f"{self.directory} is being written by {error.strerror}; wait for it or choose another directory"
                ) from None
            except OSError as error:
                raise CheckpointError(f"cannot write to {self.directory}: {error.strerror}") from None
            stack.callback(self._manager.close)
            self._resources = stack.pop_all()

    @property
    def latest(self) -> int | None:
        return max(_saved(self.directory), default=None)

    def save(self, step: int, tree: Any, versions_behind: Mapping[str, str] | None = None) -> None:
        """Write the arrays of a tree as the checkpoint of a step, unless it is there.

        `versions_behind` are the versions that made them, by default those that are running.
        """
        while self._discarded:
            self._manager.delete(self._discarded.pop())
        if self.latest == step:
            return
        arrays = _on_host(to_names(tree))
        about = {
            "format": FORMAT,
            "step": step,
            "versions": versions_behind or versions(),
            "configuration": self.configuration,
            "run": self.run,
            "arrays": _declared(arrays),
            "arrays_checksum": digest_of(arrays),
        }
        about = _as_json(about)
        about["checksum"] = _digest_of_about(about)
        arguments = ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(about))
        try:
            with _without_logs():
                written = self._manager.save(step, args=arguments)
        except Exception as error:  # whatever the storage raises
            for partial in [child for child in self.directory.iterdir() if child.name.startswith(f"{step}.")]:
                shutil.rmtree(partial, ignore_errors=True)  # on a full disk the next save needs the space
            raise CheckpointError(f"cannot save step {step} in {self.directory}: {_reason(error)}") from None
        if not written:
            raise CheckpointError(f"step {step} is not saved in {self.directory}, which holds step {self.latest}")
        if not self._read_back:
            self._check_saved(step)

    def _check_saved(self, step: int) -> None:
        """The first checkpoint is read back, so that a run does not find out at its end that nothing can be read."""
        try:
            read(self.directory, step)
        except CheckpointError as error:
            raise CheckpointError(f"what was saved cannot be read back: {error}") from None
        self._read_back = True

    def restore(self, target: Any, step: int | None = None) -> Any:
        """A checkpoint as a tree like the target, by default the newest that can be read.

        Later ones are deleted when the next one is saved: Orbax saves no step that it already has.
        """
        found = read(self.directory, step)
        if len(found.sampler) == len(found.arrays):
            raise CheckpointError(f"{self.directory} holds a sampler without its training state, which cannot be resumed")
        now = dict(self.run)
        if found.about["versions"].get("optax") != versions()["optax"]:
            now.pop("optimiser", None)  # another version may have other names inside
        refuse_changes(self.directory, found.about["run"], now)
        if "step" in found.arrays and int(found.arrays["step"]) != found.step:
            raise CheckpointError(f"{found.path} holds the state of step {int(found.arrays['step'])}")
        restored = from_names(found.arrays, target, str(self.directory))
        self._discarded = [step for step in _saved(self.directory) if step > found.step]
        return restored

    def close(self) -> None:
        """Let go of the directory."""
        self._resources.close()


@contextmanager
def _without_patterns(directory: Path) -> Iterator[Path]:
    """The directory under a name without `[`, `*` or `?`: Orbax finds files by patterns that begin with the path."""
    if glob.escape(str(directory)) == str(directory):
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="popgibbs-") as links:
        if glob.escape(links) != links:
            raise CheckpointError(f"cannot write to {directory}: neither its name nor {links} may contain *, ? or [")
        link = Path(links) / "run"
        link.symlink_to(directory, target_is_directory=True)
        yield link


@contextmanager
def _without_logs() -> Iterator[None]:
    """Keep Orbax from logging what is raised here as well, with tracebacks, or is no news."""
    logger = logging.getLogger("absl")

    def drop(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)


def _as_json(value: Any) -> Any:
    """The value as it comes back from a JSON file."""
    return json.loads(json.dumps(value))


def _declared(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The dtype and the shape of every array, or of what stands for it."""
    return {name: [np.dtype(array.dtype).name, list(array.shape)] for name, array in sorted(arrays.items())}


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes."""
    digest = hashlib.sha256(json.dumps(_declared(arrays)).encode())
    for _, array in sorted(arrays.items()):
        digest.update(array.tobytes())
    return digest.hexdigest()


def _digest_of_about(about: Mapping[str, Any]) -> str:
    others = {name: value for name, value in about.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def _reason(error: Exception) -> str:
    """What the operating system says, which TensorStore quotes by number, or else the beginning of the message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if quoted := re.search(r"(?:os_error_code='|\[OS error )(\d+)", str(error)):  # the latter before TensorStore 0.1.82
        return os.strerror(int(quoted[1]))
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _saved(directory: Path) -> list[int]:
    """The steps of a directory, the newest first: writing is atomic, so one that has its final name is complete."""
    names = [child.name for child in directory.iterdir() if child.is_dir()] if directory.is_dir() else []
    return sorted((int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name)), reverse=True)


def holds_run(directory: Path) -> bool:
    """Whether there is something to resume."""
    return bool(_saved(directory))


def read(directory: str | Path, step: int | None = None) -> Checkpoint:
    """The checkpoint of a step, or the newest that is not damaged, with a warning if a newer one is.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    path = Path(directory).absolute()
    if not path.is_dir():
        raise CheckpointError(f"there is no directory {directory}")
    if not (steps := _saved(path)):
        raise CheckpointError(f"there is no checkpoint in {directory}")
    if step is not None and step not in steps:
        there = " and ".join(map(str, steps))
        raise CheckpointError(f"there is no checkpoint of step {step} in {directory}; there is one of {there}")
    damaged: CheckpointError | None = None
    for candidate in steps if step is None else [step]:
        try:
            found = _read(path / str(candidate))
        except CheckpointError as error:
            damaged = damaged or error
            continue
        if damaged is not None:
            warnings.warn(f"{damaged}; {found.path} is used instead", stacklevel=3)
        return found
    if _saved(path) != steps:  # a trainer has replaced them meanwhile
        return read(directory, step)
    assert damaged is not None
    raise damaged


def _read(path: Path) -> Checkpoint:
    """One checkpoint, if all of it agrees with what it says about itself."""
    about = _read_about(path)
    try:
        arrays = _read_arrays(path, about["arrays"])
    except CheckpointError:
        raise
    except Exception:  # TensorStore's messages are a page about its insides
        raise _damaged(path, "its arrays cannot be read") from None
    if digest_of(arrays) != about.get("arrays_checksum"):
        raise _damaged(path, "its arrays differ from their checksum")
    return Checkpoint(path, about, arrays)


def _read_arrays(path: Path, declared: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The declared arrays, none of which is read before all are known to be as large as declared.

    TensorStore reads what Orbax wrote through it, without Orbax: where one array fails, Orbax closes the event loop that
    the others still report to, and their threads print tracebacks.
    """
    base = {"driver": "file", "path": f"{path / 'arrays'}/"}
    opened = {
        name: tensorstore.open(
            {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}}, open=True, read=True
        )
        for name in declared
    }
    stores = {name: future.result() for name, future in opened.items()}
    for name, store in stores.items():
        if [store.dtype.name, list(store.shape)] != declared[name]:
            raise _damaged(path, f"'{name}' has shape {store.shape} and dtype {store.dtype.name}, not as declared")
        piece = store.chunk_layout.read_chunk.shape or ()
        if math.prod(side or 1 for side in piece) > max(store.size, 1):
            raise _damaged(path, f"'{name}' lies in pieces that are larger than it is")
    wanted = sum(store.dtype.numpy_dtype.itemsize * store.size for store in stores.values())
    if wanted > MOST_COMPRESSED * sum(file.stat().st_size for file in (path / "arrays").rglob("*") if file.is_file()):
        raise _damaged(path, f"it declares arrays of {wanted} bytes, which its files cannot hold")
    reading = {name: store.read() for name, store in stores.items()}
    return {name: np.asarray(future.result()) for name, future in reading.items()}


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads((path / "about" / "metadata").read_text())
    except (OSError, ValueError, RecursionError):
        raise _damaged(path, "its description cannot be read") from None
    if not isinstance(about, dict):
        raise _damaged(path, "its description cannot be read")
    if about.get("format") != FORMAT:
        found = json.dumps(about.get("format"))[:20]
        raise CheckpointError(f"{path} has format {found}, this version of popgibbs reads {FORMAT}")
    if about.get("checksum") != _digest_of_about(about):
        raise _damaged(path, "its description differs from its checksum")
    if about.get("step") != int(path.name):
        raise _damaged(path, f"its description is of step {json.dumps(about.get('step'))[:20]}")
    return about


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint {path} is damaged: {why}")


def read_about(directory: str | Path, step: int | None = None) -> dict[str, Any]:
    """The configuration, the versions and the step of a run's checkpoint, by default the newest that can be read."""
    return read(directory, step).about


def read_arrays(directory: str | Path, step: int | None = None) -> dict[str, np.ndarray]:
    """All arrays of a run's checkpoint by name, by default of the newest that can be read."""
    return read(directory, step).arrays


def fingerprint(directory: str | Path) -> str:
    """A short text that differs between samplers with other arrays."""
    return read(directory).about["arrays_checksum"][:16]


def export(directory: str | Path, out: str | Path, step: int | None = None) -> None:
    """Write the arrays of a run's sampler without its training state: a third of the size, to be passed on."""
    found = read(directory, step)
    if Path(out).exists():
        raise CheckpointError(f"{out} exists already; choose another directory")
    with closing(Checkpoints(out, found.about["configuration"], found.about["run"])) as exported:
        exported.save(found.step, found.sampler, found.about["versions"])
    # Orbax notes here that it was done, and the path; a checkpoint with its final name is complete without.
    for note in Path(out).rglob("commit_success.txt"):
        note.unlink()
