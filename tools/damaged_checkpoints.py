"""Damaged checkpoints of a small run: bytes, files, descriptions, directories, and arrays that do not belong there."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import tensorstore

import popgibbs as pg
from damage import EXTREME_VALUES, OF_BYTES, Random, chosen
from popgibbs.training import Checkpoints, read, to_names
from popgibbs.training.reading import digest_of_about

STEPS = (1, 2)  # the checkpoints of the run
NEWEST = str(STEPS[-1])


class Location(eqx.Module):
    """A proposal with a few arrays."""

    weights: jax.Array
    bias: jax.Array

    def __call__(self, data: Any, latents: Any, model: Any) -> None:
        numpyro.sample("mu", dist.Normal(jnp.sum(self.weights * self.bias), 1.0))


def located(x: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)


class Run(NamedTuple):
    """A trained sampler, its run with two checkpoints, their contents by step, and runs that hold other arrays."""

    sampler: pg.APG
    directory: Path
    arrays: dict[int, dict[str, np.ndarray]]
    about: dict[int, dict[str, Any]]
    others: list[Path]


def make_run(directory: Path) -> Run:
    """Train for two steps, and write runs whose newest checkpoint holds other arrays."""
    proposal = Location(jnp.linspace(0.1, 0.4, 4), jnp.float32(0.5))
    instances = {"x": np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)}
    sampler = pg.APG(
        located, data={"x": "points"}, blocks=[pg.Block("mu", proposal=proposal)], example={"x": instances["x"][0]}
    )
    sampler.fit(
        jax.random.key(0),
        instances,
        num_steps=STEPS[-1],
        num_sweeps=0,
        num_particles=3,
        batch_size=2,
        checkpoints=directory / "sound",
        checkpoint_every=1,
        configuration={"experiment": "located", "size": {"points": 3}},
        progress=False,
    )
    found = {step: read(directory / "sound", step) for step in STEPS}
    arrays = {step: dict(checkpoint.arrays) for step, checkpoint in found.items()}
    others = [_with_arrays(directory, name, edit, arrays) for name, edit in OTHER_ARRAYS.items()]
    others.append(_with_huge_array(directory))
    about = {step: checkpoint.about for step, checkpoint in found.items()}
    return Run(sampler, directory / "sound", arrays, about, others)


def _first(arrays: dict[str, np.ndarray]) -> str:
    """The name of the first array of the sampler with more than one entry."""
    return next(name for name, array in arrays.items() if name.startswith("arrays/") and array.size > 1)


def _edited(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    return lambda arrays: {**arrays, _first(arrays): change(arrays[_first(arrays)])}


OTHER_ARRAYS: dict[str, Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]] = {
    "nan": _edited(lambda array: array * np.float32("nan")),
    "inf": _edited(lambda array: array / np.float32(0.0)),
    "float64": _edited(lambda array: array.astype(np.float64)),
    "int32": _edited(lambda array: array.astype(np.int32)),
    "longer": _edited(lambda array: np.concatenate([array, array])),
    "deeper": _edited(lambda array: array[None]),
    "scalar": _edited(lambda array: array[0]),
    "lacking": lambda arrays: {name: array for name, array in arrays.items() if name != _first(arrays)},
    "additional": lambda arrays: {**arrays, "arrays/more": np.zeros(3, np.float32)},
}


def _with_arrays(directory: Path, name: str, edit: Any, arrays: dict[int, dict[str, np.ndarray]]) -> Path:
    """A run whose two checkpoints are valid, including their checksums, but hold other arrays."""
    path = directory / name
    with closing(Checkpoints(path)) as checkpoints, np.errstate(all="ignore"):
        for step in STEPS:
            checkpoints.save(step, to_names(edit(arrays[step])))
    return path


def _with_huge_array(directory: Path) -> Path:
    """A run whose newest checkpoint declares 10¹² numbers, in its description and in its storage."""
    path = directory / "huge"
    shutil.copytree(directory / "sound", path)
    about = json.loads((path / NEWEST / "about" / "metadata").read_text())
    name = next(name for name, (_, shape) in about["arrays"].items() if shape)
    base = {"driver": "file", "path": f"{path / NEWEST / 'arrays'}/"}
    tensorstore.open(
        {
            "driver": "zarr",
            "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"},
            "metadata": {"shape": [10**12], "chunks": [10**12], "dtype": "<f4"},
        },
        create=True,
        delete_existing=True,
    ).result()
    about["arrays"][name][1] = [10**12]
    write_about(path / NEWEST, about, sealed=True)
    return path


def write_about(path: Path, about: Any, *, sealed: bool) -> None:
    """Write a description unchanged or, if sealed, with a matching checksum."""

    if sealed and isinstance(about, dict):
        about["checksum"] = digest_of_about(about)
    (path / "about" / "metadata").write_text(json.dumps(about))


# Damage -----------------------------------------------------------------------------------------------------------------


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def _one(random: Random, path: Path) -> Path:
    """A random file, more often a required one than one of the storage's own notes."""
    files = _files(path)
    needed = [file for file in files if file.parent.name in ("about", "d") or file.name == "manifest.ocdbt"]
    return chosen(random, tuple(needed if needed and random.random() < 0.7 else files))


def bytes_damaged(random: Random, path: Path, kind: str) -> None:
    for _ in range(int(random.integers(1, 3))):
        file = _one(random, path)
        file.write_bytes(OF_BYTES[kind](random, file.read_bytes()))


def deleted(random: Random, path: Path) -> None:
    """Delete a file or a directory."""
    inside = sorted(path.rglob("*"))
    victim = inside[random.integers(len(inside))]
    shutil.rmtree(victim) if victim.is_dir() else victim.unlink()


def swapped(random: Random, path: Path) -> None:
    """Swap two files, the second perhaps from the other checkpoint."""
    a, b = _one(random, path), _one(random, path if random.random() < 0.5 else path.parent)
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)


def replaced(random: Random, path: Path) -> None:
    """Replace a file by a directory, or by a link to nowhere or to itself."""
    file = _one(random, path)
    file.unlink()
    if random.random() < 0.4:
        file.mkdir()
    else:
        file.symlink_to(file.name if random.random() < 0.5 else "nowhere")


def described(random: Random, path: Path) -> None:
    """Change values in the description, half of the time with a matching checksum."""
    about = json.loads((path / "about" / "metadata").read_text())
    if random.random() < 0.05:
        write_about(path, chosen(random, EXTREME_VALUES), sealed=False)
        return
    for _ in range(int(random.integers(1, 3))):
        _edit(random, about)
    write_about(path, about, sealed=random.random() < 0.5)


def _edit(random: Random, tree: Any) -> None:
    while True:
        keys = tuple(tree) if isinstance(tree, dict) else tuple(range(len(tree)))
        if not keys:
            return
        key: Any = chosen(random, keys)
        if not (isinstance(tree[key], dict | list) and tree[key] and random.random() < 0.8):
            break
        tree = tree[key]
    if random.random() < 0.15:
        del tree[key]
    else:
        tree[key] = chosen(random, EXTREME_VALUES)


def notes_edited(random: Random, path: Path) -> None:
    """Change one of the JSON files that the storage keeps for itself."""
    notes = [file for file in _files(path) if "METADATA" in file.name]
    file = notes[random.integers(len(notes))]
    try:
        content = json.loads(file.read_text())
        _edit(random, content)
    except ValueError:
        content = chosen(random, EXTREME_VALUES)
    file.write_text(json.dumps(content))


NAMES = ("3", "7", "-1", "007", "1e3", "²", "2.orbax-checkpoint-tmp", "99999999999999999999", "abc", "2 ")


def renamed(random: Random, path: Path) -> None:
    """Rename or copy a checkpoint to another step's name, or give that name to something else."""
    other = path.with_name(str(chosen(random, NAMES)))
    kind = int(random.integers(4))
    if kind == 0:
        path.rename(other)
    elif kind == 1:
        shutil.copytree(path, other)
    elif kind == 2:
        other.mkdir()
    else:
        other.write_text("mine")


OF_FILES: dict[str, Callable[[Random, Path], None]] = {
    "file deleted": deleted,
    "files swapped": swapped,
    "file replaced": replaced,
    "description edited": described,
    "notes edited": notes_edited,
    "checkpoint renamed": renamed,
}
KINDS = (*OF_BYTES, *OF_FILES, "other arrays")


def write(random: Random, kind: str, run: Run, directory: Path) -> None:
    """Write a damaged run."""
    if kind == "other arrays":
        shutil.copytree(run.others[random.integers(len(run.others))], directory, symlinks=True)
        return
    shutil.copytree(run.directory, directory)
    steps = [NEWEST] if random.random() < 0.7 else [str(step) for step in STEPS]
    for step in steps:
        if kind in OF_BYTES:
            bytes_damaged(random, directory / step, kind)
        elif (directory / step).is_dir():
            OF_FILES[kind](random, directory / step)
