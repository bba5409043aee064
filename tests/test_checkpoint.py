"""Checkpoints: what is written comes back, and what does not fit is named."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import popgibbs as pg
from models import Location, located_sampler
from popgibbs import checkpoint
from popgibbs.checkpoint import (
    Checkpoints,
    export,
    fingerprint,
    from_names,
    read_about,
    read_arrays,
    to_names,
    versions,
)
from popgibbs.experiments.gmm import GMM

pytestmark = pytest.mark.usefixtures("quick_compilation")

EXAMPLE = {"x": np.array([0.2, 1.0, -0.5], np.float32)}


@pytest.fixture(scope="module")
def located() -> pg.APG:
    return located_sampler(example=EXAMPLE)


def with_arrays(apg: pg.APG, a: float, s: float) -> pg.APG:
    """The same sampler with other numbers in its proposal."""
    other = located_sampler(Location(jnp.float32(a), jnp.float32(s)))
    other._built = eqx.tree_at(lambda built: built.blocks[0].kernel, apg.built, other.blocks[0].kernel)
    return other


def proposal(apg: pg.APG) -> list[float]:
    held: Any = apg.built.blocks[0].proposal
    return [float(held.a), float(held.s)]


def empty_files(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")


class Wider(eqx.Module):
    """A proposal for the same site with an array more, or one of another shape."""

    a: jax.Array
    s: jax.Array
    more: jax.Array | None = None

    def __call__(self, data: Any, latents: Any, model: Any) -> None:
        numpyro.sample("mu", dist.Normal(jnp.sum(self.a), jnp.exp(self.s)))


# Trees and names --------------------------------------------------------------------------------------------------------


def test_arrays_are_named_by_their_path_and_random_keys_survive() -> None:
    tree = {"key": jax.random.key(3), "pair": (jnp.arange(2), jnp.float32(0.5)), "nothing": None}
    named = to_names(tree)
    assert set(named) == {"key", "pair/0", "pair/1"}
    restored = from_names({name: np.asarray(value) for name, value in named.items()}, tree, "here")
    assert jax.random.key_data(restored["key"]).tolist() == jax.random.key_data(tree["key"]).tolist()
    assert restored["pair"][0].tolist() == [0, 1]
    assert restored["pair"][0].dtype == jnp.int32


# Samplers ---------------------------------------------------------------------------------------------------------------


def test_saved_sampler_loads_into_one_of_the_same_kind(located: pg.APG, tmp_path: Path) -> None:
    with_arrays(located, 1.25, -0.75).save(tmp_path, {"experiment": "located"})
    assert proposal(located.load(tmp_path)) == [1.25, -0.75]
    assert proposal(located) == [0.5, 0.5]
    about = read_about(tmp_path)
    assert about["configuration"] == {"experiment": "located"}
    assert about["versions"] == versions()
    assert about["step"] == 0


def test_checkpoints_know_nothing_of_devices(located: pg.APG, tmp_path: Path) -> None:
    """Orbax refuses to read an array that it wrote from a device on a machine with others."""
    located.save(tmp_path)
    assert all(type(array) is np.ndarray for array in read_arrays(tmp_path).values())
    for variant in GMM.variants:
        assert all(type(array) is np.ndarray for array in read_arrays(GMM.shipped / variant).values())


def test_saving_again_replaces_what_was_saved(located: pg.APG, tmp_path: Path) -> None:
    with_arrays(located, 1.0, 1.0).save(tmp_path)
    with_arrays(located, 2.0, 2.0).save(tmp_path)
    assert proposal(located.load(tmp_path)) == [2.0, 2.0]


def test_trained_sampler_loads_from_the_directory_of_its_run(located: pg.APG, tmp_path: Path) -> None:
    visited = {}
    fitted = located.fit(
        jax.random.key(0),
        [EXAMPLE],
        num_steps=3,
        num_sweeps=0,
        num_particles=2,
        batch_size=1,
        optimiser=optax.sgd(0.1),
        checkpoints=tmp_path,
        checkpoint_every=1,
        configuration={"variant": "small"},
        at_checkpoints=lambda step, sampler: visited.update({step: proposal(sampler)}),
        progress=False,
    )
    assert list(visited) == [1, 2, 3]
    assert visited[3] == proposal(fitted.sampler) != visited[2]
    assert proposal(located.load(tmp_path)) == proposal(fitted.sampler) != proposal(located)
    assert read_about(tmp_path)["step"] == 3
    assert read_about(tmp_path)["configuration"] == {"variant": "small"}
    assert sorted(child.name for child in tmp_path.iterdir() if child.name.isdigit()) == ["2", "3"]


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"blocks": {"a": jnp.zeros(())}}, "lacks 'arrays/blocks/0/kernel/program/a'.*of another sampler"),
        (
            Wider(jnp.zeros(2), jnp.zeros(())),
            r"of another sampler: 'arrays/blocks/0/kernel/program/a' has shape \(2,\), not \(\)",
        ),
        (Wider(jnp.zeros(()), jnp.zeros(()), jnp.zeros(3)), "another sampler.*'arrays/blocks/0/kernel/program/more'"),
    ],
    ids=["missing", "shape", "extra"],
)
def test_checkpoint_of_another_sampler_is_refused(located: pg.APG, tmp_path: Path, saved: Any, message: str) -> None:
    if isinstance(saved, Wider):
        located_sampler(saved, example=EXAMPLE).save(tmp_path)
    else:
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(0, {"arrays": saved})
        checkpoints.close()
    with pytest.raises(pg.CheckpointError, match=message):
        located.load(tmp_path)


def test_an_exported_sampler_is_that_of_the_run_and_nothing_else(
    located: pg.APG, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = eqx.filter(with_arrays(located, 1.25, -0.75).built, eqx.is_inexact_array)
    run = Checkpoints(tmp_path / "run", {"variant": "small"}, {"batch_size": 2})
    run.save(7, {"arrays": arrays, "optimiser": optax.adam(0.1).init(arrays), "key": jax.random.key(0)})
    run.close()
    about = read_about(tmp_path / "run")
    monkeypatch.setattr(checkpoint, "versions", lambda: {"popgibbs": "a later one"})
    export(tmp_path / "run", tmp_path / "alone")
    exported = read_about(tmp_path / "alone")
    assert all(exported[name] == about[name] for name in ("step", "versions", "configuration", "run"))
    assert proposal(located.load(tmp_path / "alone")) == [1.25, -0.75]
    assert {name.split("/")[0] for name in read_arrays(tmp_path / "alone")} == {"arrays"}
    written = [path for path in (tmp_path / "alone").rglob("*") if path.is_file()]
    assert not any(str(tmp_path).encode() in path.read_bytes() for path in written)


def test_a_fingerprint_tells_samplers_apart(located: pg.APG, tmp_path: Path) -> None:
    for name, apg in {"one": located, "same": located, "other": with_arrays(located, 1.25, -0.75)}.items():
        apg.save(tmp_path / name)
    one, same, other = (fingerprint(tmp_path / name) for name in ("one", "same", "other"))
    assert one == same != other


def test_a_sampler_without_its_training_state_cannot_be_resumed(located: pg.APG, tmp_path: Path) -> None:
    located.save(tmp_path)
    resumed = Checkpoints(tmp_path)
    with pytest.raises(pg.CheckpointError, match="holds a sampler without its training state, which cannot be resumed"):
        resumed.restore({"arrays": eqx.filter(located.built, eqx.is_inexact_array), "key": jax.random.key(0)})
    resumed.close()


def test_an_export_never_overwrites(located: pg.APG, tmp_path: Path) -> None:
    located.save(tmp_path / "run")
    (tmp_path / "mine").mkdir()
    with pytest.raises(pg.CheckpointError, match="mine exists already"):
        export(tmp_path / "run", tmp_path / "mine")
    assert not list((tmp_path / "mine").iterdir())


# Directories ------------------------------------------------------------------------------------------------------------


def test_missing_and_empty_directories_are_named(located: pg.APG, tmp_path: Path) -> None:
    with pytest.raises(pg.CheckpointError, match=r"there is no directory .*nowhere"):
        located.load(tmp_path / "nowhere")
    with pytest.raises(pg.CheckpointError, match="there is no checkpoint in"):
        read_about(tmp_path)
    assert not (tmp_path / "nowhere").exists()


def test_directory_that_cannot_be_written_is_named(located: pg.APG, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(pg.CheckpointError, match=r"cannot write to .*file"):
        located.save(tmp_path / "file")


def test_damaged_checkpoint_is_an_error_of_its_own(located: pg.APG, tmp_path: Path) -> None:
    located.save(tmp_path)
    empty_files(tmp_path / "0" / "arrays")
    with pytest.raises(pg.CheckpointError, match=r"the checkpoint .*/0 is damaged: its arrays cannot be read"):
        located.load(tmp_path)


@pytest.mark.parametrize("read", [read_about, read_arrays], ids=["about", "arrays"])
def test_checkpoint_of_another_format_is_refused(
    located: pg.APG, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any
) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    located.save(tmp_path)
    monkeypatch.undo()
    with pytest.raises(pg.CheckpointError, match="has format 99, this version of popgibbs reads 2"):
        read(tmp_path)
