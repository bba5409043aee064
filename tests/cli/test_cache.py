"""The compilation cache of the command line: private, optional, safe with several processes, never in the way."""

import os
import subprocess
import sys

import pytest

from popgibbs.cli import cache

PROGRAM = """
import jax
from popgibbs.cli import cache

misses = []
jax.monitoring.register_event_listener(lambda event, **_: event.endswith("/cache_misses") and misses.append(event))
cache.use()
assert jax.jit(lambda x: x * 3 + 1)(2.0) == 7
print(jax.config.jax_compilation_cache_dir, len(misses))
"""


SAMPLER = """
import numpy as np
from models import located_sampler

x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
apg = located_sampler(example=x[0])
small = dict(num_sweeps=1, num_particles=3)
apg.fit(jax.random.key(0), {"x": x}, num_steps=1, batch_size=3, progress=False, **small)
posterior = apg.sample(jax.random.key(0), [x[0], x[1][:3], x[2][:1]], **small)
posterior.extend(jax.random.key(1), 2).resampled(jax.random.key(2))
"""


def start(program=PROGRAM, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**environment, **{name: str(value) for name, value in variables.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    """The cache directory that the process used, its cache misses, and its standard error."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    directory, misses = out.split()
    return directory, int(misses), err


def test_two_processes_fill_an_empty_cache_and_a_third_compiles_nothing(tmp_path):
    both = [start(POPGIBBS_CACHE=tmp_path / "kept") for _ in range(2)]
    assert sum(ended(process)[1] for process in both) > 0
    directory, misses, err = ended(start(POPGIBBS_CACHE=tmp_path / "kept"))
    assert (misses, err) == (0, "")
    assert directory.startswith(str(tmp_path / "kept"))
    assert os.stat(directory).st_mode & 0o777 == os.stat(tmp_path / "kept").st_mode & 0o777 == 0o700


def test_a_second_process_that_builds_trains_and_samples_compiles_nothing(tmp_path):
    setup, told = PROGRAM.split("assert")[0], PROGRAM.splitlines()[-1]
    program = f"{setup}{SAMPLER}{told}"
    assert ended(start(program, POPGIBBS_CACHE=tmp_path))[1] > 10
    assert ended(start(program, POPGIBBS_CACHE=tmp_path))[1:] == (0, "")


def test_a_half_written_program_is_replaced(tmp_path):
    directory, misses, _ = ended(start(POPGIBBS_CACHE=tmp_path))
    for name in os.listdir(directory):
        if name.endswith("-cache"):
            with open(os.path.join(directory, name), "r+b") as program:
                program.truncate(10)
            os.unlink(os.path.join(directory, name.removesuffix("-cache") + "-atime"))
    assert ended(start(POPGIBBS_CACHE=tmp_path))[1:] == (misses, "")
    assert ended(start(POPGIBBS_CACHE=tmp_path))[1:] == (0, "")


def test_a_directory_that_others_may_write_to_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o770)
    (tmp_path / "link").symlink_to("open")
    for name in ("open", "link"):
        directory, _, err = ended(start(POPGIBBS_CACHE=tmp_path / name))
        assert directory == "None"
        (sentence,) = err.strip().splitlines()
        assert f"others may write to {tmp_path / 'open'}" in sentence


@pytest.mark.parametrize("name", ["file", "/proc/nowhere"])
def test_a_directory_that_cannot_be_created_costs_a_sentence(tmp_path, name):
    (tmp_path / "file").write_text("")
    directory, _, err = ended(start(POPGIBBS_CACHE=tmp_path / name))
    assert directory == "None"
    assert len(err.strip().splitlines()) == 1


def test_the_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(ValueError, match="belongs to another user"):
        cache._private(tmp_path)


def test_off_and_the_setting_of_jax_are_respected(tmp_path):
    assert ended(start(POPGIBBS_CACHE="off", XDG_CACHE_HOME=tmp_path))[0] == "None"
    own = start(POPGIBBS_CACHE="", XDG_CACHE_HOME=tmp_path, JAX_COMPILATION_CACHE_DIR=tmp_path / "jax")
    assert ended(own)[0] == str(tmp_path / "jax")
    assert not (tmp_path / "popgibbs").exists()


def test_the_user_s_cache_directory_is_the_default(tmp_path):
    assert ended(start(POPGIBBS_CACHE="", XDG_CACHE_HOME=tmp_path))[0].startswith(str(tmp_path / "popgibbs"))
