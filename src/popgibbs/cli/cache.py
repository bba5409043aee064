"""JAX's persistent compilation cache, so that the next command need not compile the same programs again.

`POPGIBBS_CACHE` names another directory, or `off`. JAX executes what it finds in the cache, so a directory to which
others may write is not used.
"""

import hashlib
import os
import platform
import stat
import sys
import warnings
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

VARIABLE = "POPGIBBS_CACHE"
MOST_BYTES = 2**30


def use() -> None:
    """Let JAX keep compiled programs; a directory that cannot be used costs a warning at most."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted.lower() == "off" or "JAX_COMPILATION_CACHE_DIR" in os.environ:  # JAX reads the latter itself
        return
    try:
        directory = _private(Path(wanted).expanduser() if wanted else _default()) / _machine()
        directory.mkdir(mode=0o700, exist_ok=True)
        _private(directory)
        _remove_fragments(directory)
    except (ImportError, OSError, RuntimeError, ValueError) as error:  # RuntimeError: there is no home directory
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        print(f"popgibbs: compiled programs are not kept: {reason} ({VARIABLE}=off silences this)", file=sys.stderr)
        return
    import jax

    # Also the smallest programs: there are hundreds, and together they take as long to compile as a large one.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)
    jax.config.update("jax_compilation_cache_dir", str(directory))
    # A full disk or a busy lock: JAX compiles instead, and there is nothing for users to do.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")


def _default() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"  # the XDG rule for relative paths
    return base / "popgibbs"


def _private(directory: Path) -> Path:
    """The directory itself, behind links, created if necessary; only this user may own it and write to it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    real = directory.resolve()
    about = real.stat()
    if hasattr(os, "getuid") and about.st_uid != os.getuid():
        raise ValueError(f"{real} belongs to another user")
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(f"others may write to {real}")
    return real


def _machine() -> str:
    """A name for programs that run here: JAX's own keys leave out the processor, and a home may serve several."""
    features = [platform.system(), platform.machine(), platform.processor()]
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features += sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    digest = hashlib.sha256("\n".join(features).encode()).hexdigest()[:12]
    return f"popgibbs-{version('popgibbs')}-jaxlib-{version('jaxlib')}-{digest}"


def _remove_fragments(directory: Path) -> None:
    """Delete programs that a killed process or a full disk left half-written.

    JAX writes the program and then its time of use. A program without a time is incomplete, and JAX would neither read
    nor replace it, nor make room for others.
    """
    from filelock import FileLock, Timeout

    with suppress(Timeout), FileLock(directory / ".lockfile").acquire(timeout=0):  # the lock that JAX takes
        for program in directory.glob("*-cache"):
            used = program.with_name(program.name.removesuffix("-cache") + "-atime")
            if not used.exists() or used.stat().st_size != 8:
                program.unlink()
                used.unlink(missing_ok=True)
