"""Writing checkpoints with Orbax: arrays by name, always restored into a target.

Each step's arrays are saved with a description (`about`): the configuration, the versions, the arguments of the run, the
names, dtypes and shapes of the arrays, and checksums of the arrays and of the description.
"""

import glob
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from popgibbs.training.lock import Lock
from popgibbs.training.naming import SAMPLER, CheckpointError, from_names, part_of, to_names
from popgibbs.training.provenance import refuse_changes
from popgibbs.training.reading import FORMAT, declared, digest_of, digest_of_about, read, saved_steps

_PACKAGES = ("popgibbs", "jax", "jaxlib", "numpyro", "equinox", "optax")


def versions() -> dict[str, str]:
    return {package: version(package) for package in _PACKAGES}


def _on_host(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """NumPy arrays, because a checkpoint that records devices can only be read on the same devices."""
    return {name: np.asarray(array) for name, array in arrays.items()}


class Checkpoints:
    """The checkpoints of one run in a directory, of which the newest two are kept, written by one process at a time.

    Writing is atomic. `run` holds the arguments that a resumed run must share.
    """

    def __init__(
        self,
        directory: str | Path,
        configuration: Mapping[str, Any] | None = None,
        run: Mapping[str, Any] | None = None,
    ):
        import orbax.checkpoint as ocp  # here, because it is slow to import

        self.directory = Path(directory).absolute()
        try:
            self.configuration = _as_json(dict(configuration or {}))
        except TypeError as error:
            raise ValueError(f"the configuration of a run is saved as JSON, but {error}") from None
        self.run = _as_json(dict(run or {}))
        self._read_back = False  # whether a saved checkpoint has been read back
        self._discarded: list[int] = []  # steps after the restored one, which the run repeats
        with ExitStack() as stack:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                if jax.process_index() == 0:  # Orbax coordinates the other processes of the run
                    stack.callback(Lock(self.directory).release)
                path = stack.enter_context(_without_patterns(self.directory))
                # Synchronous, so that a failing save raises at its own step and in this thread.
                options = ocp.CheckpointManagerOptions(
                    max_to_keep=2, create=True, cleanup_tmp_directories=True, enable_async_checkpointing=False
                )
                with _without_logs():  # about an old checkpoint that a killed process had begun to delete
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
        return max(saved_steps(self.directory), default=None)

    def save(self, step: int, tree: Any, versions_behind: Mapping[str, str] | None = None) -> None:
        """Write the arrays of a tree as the checkpoint of a step, unless that exists.

        `versions_behind` are the package versions that made them, by default the current ones.
        """
        import orbax.checkpoint as ocp

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
            "arrays": declared(arrays),
            "arrays_checksum": digest_of(arrays),
        }
        about = _as_json(about)
        about["checksum"] = digest_of_about(about)
        arguments = ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(about))
        try:
            with _without_logs():
                written = self._manager.save(step, args=arguments)
        except Exception as error:  # storage drivers raise many types
            for partial in [child for child in self.directory.iterdir() if child.name.startswith(f"{step}.")]:
                shutil.rmtree(partial, ignore_errors=True)  # on a full disk the next save needs the space
            raise CheckpointError(f"cannot save step {step} in {self.directory}: {_reason(error)}") from None
        if not written:
            raise CheckpointError(f"step {step} is not saved in {self.directory}, which holds step {self.latest}")
        if not self._read_back:
            self._check_saved(step)

    def _check_saved(self, step: int) -> None:
        """Read the first checkpoint back, so that unreadable storage is found at the start of a run, not at its end."""
        try:
            read(self.directory, step)
        except CheckpointError as error:
            raise CheckpointError(f"the saved checkpoint cannot be read back: {error}") from None
        self._read_back = True

    def restore(self, target: Any, step: int | None = None) -> Any:
        """A checkpoint, by default the newest readable one, as a tree like the target.

        Later ones are deleted when the next one is saved, because Orbax does not overwrite a step.
        """
        found = read(self.directory, step)
        check_resumable(self.directory, found.about)
        now = dict(self.run)
        if found.about["versions"].get("optax") != versions()["optax"]:
            now.pop("optimiser", None)  # names inside may differ between versions
        refuse_changes(self.directory, found.about["run"], now)
        if "step" in found.arrays and int(found.arrays["step"]) != found.step:
            raise CheckpointError(f"{found.path} holds the state of step {int(found.arrays['step'])}")
        restored = from_names(found.arrays, target, str(self.directory))
        self._discarded = [step for step in saved_steps(self.directory) if step > found.step]
        return restored

    def close(self) -> None:
        """Release the directory."""
        self._resources.close()


@contextmanager
def _without_patterns(directory: Path) -> Iterator[Path]:
    """The directory under a name without `[`, `*` or `?`, because Orbax finds files by patterns that start with it."""
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
    """Silence Orbax's logs of errors, which are raised here anyway, and of routine work."""
    logger = logging.getLogger("absl")

    def drop(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)


def _as_json(value: Any) -> Any:
    """The value as a JSON file would return it."""
    return json.loads(json.dumps(value))


def _reason(error: Exception) -> str:
    """The operating system's message, which TensorStore quotes by number, or the beginning of the error's own."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if quoted := re.search(r"(?:os_error_code='|\[OS error )(\d+)", str(error)):  # the latter before TensorStore 0.1.82
        return os.strerror(int(quoted[1]))
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def check_resumable(directory: str | Path, about: Mapping[str, Any]) -> None:
    """Refuse to resume a checkpoint, given by its description, that was saved without a training state."""
    if all(part_of(name) == SAMPLER for name in about["arrays"]):
        raise CheckpointError(f"{directory} holds a sampler without its training state, which cannot be resumed")


def export(directory: str | Path, out: str | Path, step: int | None = None) -> None:
    """Write the arrays of a run's sampler without its training state, at a third of the size."""
    found = read(directory, step)
    if Path(out).exists():
        raise CheckpointError(f"{out} exists already; choose another directory")
    with closing(Checkpoints(out, found.about["configuration"], found.about["run"])) as exported:
        exported.save(found.step, found.sampler, found.about["versions"])
    # Orbax records the original path in these files; a checkpoint under its final name is complete without them.
    for note in Path(out).rglob("commit_success.txt"):
        note.unlink()
