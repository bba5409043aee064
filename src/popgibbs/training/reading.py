"""Reading checkpoints, whose arrays must agree with the checkpoint's own description."""

import hashlib
import json
import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from popgibbs.training.naming import SAMPLER, CheckpointError, part_of

FORMAT = 2
MOST_COMPRESSED = 2**15  # the largest compression ratio of Zstandard


class Checkpoint(NamedTuple):
    """The contents of a checkpoint."""

    path: Path
    about: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def step(self) -> int:
        return self.about["step"]

    @property
    def sampler(self) -> dict[str, np.ndarray]:
        """The arrays of the sampler, without a training state."""
        return {name: array for name, array in self.arrays.items() if part_of(name) == SAMPLER}


def saved_steps(directory: Path) -> list[int]:
    """The steps saved in a directory, newest first; writing is atomic, so a final name means a complete checkpoint."""
    names = [child.name for child in directory.iterdir() if child.is_dir()] if directory.is_dir() else []
    return sorted((int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name)), reverse=True)


def holds_run(directory: Path) -> bool:
    """Whether there is something to resume."""
    return bool(saved_steps(directory))


def read(directory: str | Path, step: int | None = None) -> Checkpoint:
    """The checkpoint of a step, or the newest undamaged one, with a warning if a newer one is damaged.

    Raises:
        CheckpointError: There is none, or it is damaged.
    """
    path = Path(directory).absolute()
    if not path.is_dir():
        raise CheckpointError(f"there is no directory {directory}")
    if not (steps := saved_steps(path)):
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
    if saved_steps(path) != steps:  # a training process has replaced them in the meantime
        return read(directory, step)
    assert damaged is not None
    raise damaged


def _read(path: Path) -> Checkpoint:
    """One checkpoint, if its arrays agree with its description."""
    about = _read_about(path)
    try:
        arrays = _read_arrays(path, about["arrays"])
    except CheckpointError:
        raise
    except Exception:  # TensorStore's messages are a page of its internals
        raise _damaged(path, "its arrays cannot be read") from None
    if digest_of(arrays) != about.get("arrays_checksum"):
        raise _damaged(path, "its arrays differ from their checksum")
    return Checkpoint(path, about, arrays)


def _read_arrays(path: Path, declared: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The declared arrays, none of which is read before all have been checked to be as large as declared.

    TensorStore reads the files directly, without Orbax: if one array fails, Orbax closes the event loop that the others
    still report to, and their threads print tracebacks.
    """
    import tensorstore  # here, because it is slow to import

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
            raise _damaged(path, f"'{name}' is stored in chunks that are larger than it is")
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
        raise CheckpointError(f"{path} has format {found}, but this version of popgibbs reads format {FORMAT}")
    if about.get("checksum") != digest_of_about(about):
        raise _damaged(path, "its description differs from its checksum")
    if about.get("step") != int(path.name):
        raise _damaged(path, f"its description belongs to step {json.dumps(about.get('step'))[:20]}")
    return about


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint {path} is damaged: {why}")


def read_about(directory: str | Path, step: int | None = None) -> dict[str, Any]:
    """The description of a run's checkpoint, by default the newest readable one."""
    return read(directory, step).about


def read_arrays(directory: str | Path, step: int | None = None) -> dict[str, np.ndarray]:
    """All arrays of a run's checkpoint by name, by default of the newest readable one."""
    return read(directory, step).arrays


def fingerprint(directory: str | Path) -> str:
    """A short text that identifies the arrays of a run's newest checkpoint."""
    return read(directory).about["arrays_checksum"][:16]


def declared(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The dtype and the shape of every array or `ShapeDtypeStruct`."""
    return {name: [np.dtype(array.dtype).name, list(array.shape)] for name, array in sorted(arrays.items())}


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes."""
    digest = hashlib.sha256(json.dumps(declared(arrays)).encode())
    for _, array in sorted(arrays.items()):
        digest.update(array.tobytes())
    return digest.hexdigest()


def digest_of_about(about: Mapping[str, Any]) -> str:
    others = {name: value for name, value in about.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()
