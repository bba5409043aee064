"""Checkpoints: arrays survive saving and loading, and mismatches are named."""

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import orbax.checkpoint as ocp
import pytest
import tensorstore

import popgibbs as pg
from models import Location, located_sampler
from popgibbs.paper.gmm import GMM
from popgibbs.training import (
    Checkpoints,
    checkpoint,
    export,
    fingerprint,
    from_names,
    read,
    read_about,
    read_arrays,
    reading,
    to_names,
    versions,
)

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
    """A proposal for the same site with an additional array, or with one of another shape."""

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


def test_a_saved_sampler_loads_into_one_of_the_same_structure(located: pg.APG, tmp_path: Path) -> None:
    with_arrays(located, 1.25, -0.75).save(tmp_path, {"experiment": "located"})
    assert proposal(located.load(tmp_path)) == [1.25, -0.75]
    assert proposal(located) == [0.5, 0.5]
    about = read_about(tmp_path)
    assert about["configuration"] == {"experiment": "located"}
    assert about["versions"] == versions()
    assert about["step"] == 0


def test_checkpoints_do_not_record_devices(located: pg.APG, tmp_path: Path) -> None:
    """Orbax refuses to read an array that was written from a device which the machine does not have."""
    located.save(tmp_path)
    assert all(type(array) is np.ndarray for array in read_arrays(tmp_path).values())
    for variant in GMM.variants:
        assert all(type(array) is np.ndarray for array in read_arrays(GMM.shipped / variant).values())


def test_saving_again_replaces_the_saved_sampler(located: pg.APG, tmp_path: Path) -> None:
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
        on_checkpoint=lambda step, sampler: visited.update({step: proposal(sampler)}),
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
def test_a_checkpoint_of_another_sampler_is_refused(located: pg.APG, tmp_path: Path, saved: Any, message: str) -> None:
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


def test_fingerprints_of_different_samplers_differ(located: pg.APG, tmp_path: Path) -> None:
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


def test_a_damaged_checkpoint_raises_a_checkpoint_error(located: pg.APG, tmp_path: Path) -> None:
    located.save(tmp_path)
    empty_files(tmp_path / "0" / "arrays")
    with pytest.raises(pg.CheckpointError, match=r"the checkpoint .*/0 is damaged: its arrays cannot be read"):
        located.load(tmp_path)


@pytest.mark.parametrize("read", [read_about, read_arrays], ids=["about", "arrays"])
def test_a_checkpoint_of_another_format_is_refused(
    located: pg.APG, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any
) -> None:
    for module in (checkpoint, reading):
        monkeypatch.setattr(module, "FORMAT", 99)
    located.save(tmp_path)
    monkeypatch.undo()
    with pytest.raises(pg.CheckpointError, match="has format 99, but this version of popgibbs reads format 2"):
        read(tmp_path)


# Damage -----------------------------------------------------------------------------------------------------------------


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def rename_step(path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(path.with_name("0"), path)


def resign(path: Path, **changes: Any) -> None:
    """Change a description and its checksum, so that both agree."""
    about = json.loads((path / "about" / "metadata").read_text()) | changes
    about["checksum"] = reading.digest_of_about(about)
    (path / "about" / "metadata").write_text(json.dumps(about))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "its description cannot be read": lambda path: (path / "about" / "metadata").write_bytes(b"\xff"),
    "its description differs from its checksum": lambda path: rewrite(path / "about" / "metadata", "located", "lacated"),
    "its description belongs to step 0": rename_step,
    "its arrays cannot be read": lambda path: empty_files(path / "arrays"),
    "its arrays differ from their checksum": lambda path: resign(path, arrays_checksum="0"),
}


@pytest.mark.parametrize("why", DAMAGE)
def test_a_damaged_newest_checkpoint_is_replaced_by_the_one_before(
    located: pg.APG, tmp_path: Path, capfd: pytest.CaptureFixture[str], why: str
) -> None:
    """The warning names both, and nothing else is printed, such as tracebacks of the storage's threads."""
    for a in (1.0, 2.0):
        with_arrays(located, a, 0.5).save(tmp_path, {"experiment": "located"})
    DAMAGE[why](tmp_path / "1")
    with pytest.warns(UserWarning, match=rf"the checkpoint .*/1 is damaged: {why}; .*/0 is used instead$") as warned:
        assert proposal(located.load(tmp_path)) == [1.0, 0.5]
    assert len(warned) == 1
    with pytest.raises(pg.CheckpointError, match=rf"^the checkpoint .*/1 is damaged: {why}$"):
        located.load(tmp_path, step=1)
    shutil.rmtree(tmp_path / "0")
    with pytest.raises(pg.CheckpointError, match=rf"^the checkpoint .*/1 is damaged: {why}$"):
        located.load(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_a_step_chooses_a_checkpoint(located: pg.APG, tmp_path: Path) -> None:
    for a in (1.0, 2.0):
        with_arrays(located, a, 0.5).save(tmp_path / "run")
    assert proposal(located.load(tmp_path / "run", step=0)) == [1.0, 0.5]
    assert proposal(located.load(tmp_path / "run", step=1)) == [2.0, 0.5]
    export(tmp_path / "run", tmp_path / "alone", step=0)
    assert proposal(located.load(tmp_path / "alone")) == [1.0, 0.5]
    for missing in (7, -1):
        with pytest.raises(pg.CheckpointError, match=f"no checkpoint of step {missing} in .*; there is one of 1 and 0"):
            located.load(tmp_path / "run", step=missing)


def test_names_that_are_not_steps_are_no_checkpoints(located: pg.APG, tmp_path: Path) -> None:
    located.save(tmp_path)
    (tmp_path / "5").write_text("a file")
    for name in ("-5", "٣", "²", "007", "1.orbax-checkpoint-tmp"):
        (tmp_path / name).mkdir()
    assert read(tmp_path).step == 0


HUGE = 10**12


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"shape": [HUGE], "chunks": [HUGE]}, rf"'arrays/w' has shape \({HUGE},\) and dtype float32, not as declared"),
        ({"chunks": [HUGE]}, "'arrays/w' is stored in chunks that are larger than it is"),
        ({"dtype": "<i4"}, "'arrays/w' has shape .* and dtype int32, not as declared"),
    ],
    ids=["shape", "piece", "dtype"],
)
def test_declared_sizes_are_checked_before_memory_is_allocated(
    tmp_path: Path, header: dict[str, Any], message: str
) -> None:
    declare(tmp_path, header)
    with pytest.raises(pg.CheckpointError, match=message):
        read(tmp_path)


def test_a_size_that_the_files_cannot_hold_is_refused_even_if_the_checkpoint_is_consistent(tmp_path: Path) -> None:
    declare(tmp_path, {"shape": [HUGE], "chunks": [HUGE]})
    resign(tmp_path / "0", arrays={"arrays/w": ["float32", [HUGE]]})
    with pytest.raises(pg.CheckpointError, match=f"it declares arrays of {4 * HUGE} bytes, which its files cannot hold"):
        read(tmp_path)


def declare(directory: Path, header: dict[str, Any]) -> None:
    """Save a small array and change its header."""
    checkpoints = Checkpoints(directory)
    checkpoints.save(0, {"arrays": {"w": np.ones(3, np.float32)}})
    checkpoints.close()
    base = {"driver": "file", "path": f"{directory}/0/arrays/"}
    store: Any = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
    saved = json.loads(store["arrays/w/.zarray"])
    store["arrays/w/.zarray"] = json.dumps(saved | header)


def test_arrays_that_compress_well_are_read(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, {"arrays": {"w": np.zeros(2**22, np.float32)}})
    checkpoints.close()
    assert read(tmp_path).arrays["arrays/w"].shape == (2**22,)


def test_numbers_that_are_not_finite_are_refused_unless_the_fresh_sampler_has_them(tmp_path: Path) -> None:
    mask = {"arrays": {"logits": np.array([0.0, -np.inf], np.float32)}}
    restored = from_names(to_names(mask), mask, "here")
    assert restored["arrays"]["logits"].tolist() == [0.0, -np.inf]
    for bad in (np.nan, np.inf):
        saved = {"arrays/logits": np.array([bad, -np.inf], np.float32)}
        with pytest.raises(pg.CheckpointError, match="here holds numbers in 'arrays/logits' that are not finite; choose"):
            from_names(saved, mask, "here")


@pytest.mark.parametrize(("saved", "widen"), [("float64", True), ("float16", False), ("int32", True)])
def test_other_dtypes_are_refused(saved: str, widen: bool) -> None:
    target = {"arrays": {"a": np.zeros(2, np.float32)}}
    with pytest.raises(pg.CheckpointError, match=f"'arrays/a' has dtype {saved}, not float32"):
        from_names({"arrays/a": np.zeros(2, saved)}, target, "here", widen=widen)


def test_floats_of_a_loaded_sampler_may_be_narrower() -> None:
    target = {"arrays": {"a": np.zeros(2, np.float32)}}
    widened = from_names({"arrays/a": np.full(2, 0.5, np.float16)}, target, "here", widen=True)["arrays"]["a"]
    assert (widened.dtype, widened.tolist()) == (jnp.float32, [0.5, 0.5])


@pytest.mark.parametrize("step", [-3, 8])
def test_the_state_of_another_step_is_refused(tmp_path: Path, step: int) -> None:
    state = {"arrays": {"a": np.zeros(2, np.float32)}, "step": np.int32(step)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(7, state)
    with pytest.raises(pg.CheckpointError, match=f"/7 holds the state of step {step}"):
        checkpoints.restore(state)
    checkpoints.close()


# Writing ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run[1]", "run**", "a?b/[c]*"])
def test_a_run_may_be_in_a_directory_whose_name_looks_like_a_pattern(located: pg.APG, tmp_path: Path, name: str) -> None:
    for a in (1.0, 2.0, 3.0):
        with_arrays(located, a, 0.5).save(tmp_path / name)
    assert proposal(located.load(tmp_path / name)) == [3.0, 0.5]
    assert sorted(child.name for child in (tmp_path / name).iterdir()) == ["1", "2"]


def test_the_first_checkpoint_is_read_back(located: pg.APG, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = ocp.CheckpointManager.save

    def losing(manager: Any, step: int, **arguments: Any) -> bool:
        written = save(manager, step, **arguments)
        empty_files(tmp_path / str(step) / "arrays")
        return bool(written)

    monkeypatch.setattr(ocp.CheckpointManager, "save", losing)
    with pytest.raises(pg.CheckpointError, match=r"the saved checkpoint cannot be read back: .*/0 is damaged"):
        located.save(tmp_path)


def test_a_failing_save_is_reported_in_one_sentence_and_keeps_older_checkpoints(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    small, large = ({"arrays": np.random.default_rng(0).normal(size=size)} for size in (10, 100_000))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, small)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(pg.CheckpointError, match=r"^cannot save step 2 in .*: File too large$"):
            checkpoints.save(2, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read(tmp_path).step == 1
    assert sorted(child.name for child in tmp_path.iterdir()) == ["1", "writer.lock"]
    checkpoints.save(3, large)
    assert read(tmp_path).step == 3
    with pytest.raises(pg.CheckpointError, match=r"step 2 is not saved in .*, which holds step 3"):
        checkpoints.save(2, small)
    checkpoints.close()
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_a_configuration_that_is_not_json_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="configuration of a run is saved as JSON, but Object of type ndarray is not"):
        Checkpoints(tmp_path / "run", {"size": np.zeros(2)})
    assert not (tmp_path / "run").exists()


def test_half_written_files_of_a_killed_process_are_removed(located: pg.APG, tmp_path: Path) -> None:
    located.save(tmp_path)
    (tmp_path / "5.orbax-checkpoint-tmp").mkdir()
    located.save(tmp_path)
    assert sorted(child.name for child in tmp_path.iterdir()) == ["0", "1"]
