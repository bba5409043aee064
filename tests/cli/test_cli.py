"""The command line: its output, its exit codes, and that bad input changes nothing."""

import json
import os
import signal
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import arviz as az
import jax
import numpy as np
import pytest

from popgibbs.apg import APG
from popgibbs.cli import app as cli
from popgibbs.paper.dmm import DMM
from popgibbs.paper.gmm import GMM
from popgibbs.posterior import Posterior
from popgibbs.training import Interrupted, read_about

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the command line; returns exit code, standard output and standard error."""

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["popgibbs", *map(str, arguments)])
        monkeypatch.setattr(cli.out, "file", None)
        monkeypatch.setattr("popgibbs.training.end_at_once", sys.exit)
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(autouse=True, scope="module")
def one_build_each():
    """Build one sampler per variant: checking it again at every call is slow and tests nothing more."""
    built = {}

    def once(build):
        def cached(variant, key, size):
            if (build, variant) not in built:
                built[build, variant] = build(variant, key, size)
            return built[build, variant]

        return cached

    originals = [(experiment, experiment.build) for experiment in (GMM, DMM)]
    for experiment, build in originals:
        object.__setattr__(experiment, "build", once(build))
    yield
    for experiment, build in originals:
        object.__setattr__(experiment, "build", build)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.npz"
    points = np.random.default_rng(0).normal(size=(9, 2))
    np.savez(path, x=points, x_lengths=[4, 5])
    return path


def test_help_names_every_command(run):
    code, text, _ = run("--help")
    assert code == 0
    assert all(command in text for command in ("demo", "train", "evaluate", "sample", "reproduce", "show", "export"))


def test_sampling_ragged_instances_writes_a_file_that_arviz_reads(run, data, tmp_path):
    out = tmp_path / "posterior.nc"
    code, text, err = run(
        "sample", "gmm", data, "--out", out, "--num-sweeps", 2, "--num-particles", 3, "--num-populations", 2
    )
    assert code == 0, err
    assert "blocks [tau,mu] [c]" in text
    posterior = az.from_netcdf(out)
    assert posterior.posterior["c"].shape == (2, 3, 2, 5)
    assert (posterior.posterior["c"].values[:, :, 0, 4] == -1).all()  # the first instance has four points
    assert list(posterior.constant_data["size_points"].values) == [4, 5]


def test_evaluation_prints_one_json_object(run):
    budget = ["--instances", 4, "--points", 6, "--num-sweeps", 2, "--num-particles", 3, "--num-populations", 2]
    code, text, err = run("evaluate", "gmm", *budget, "--json")
    assert code == 0, err
    result = json.loads(text)
    for name in ("log_joint", "gap"):
        assert set(result[name]) == {"mean", "se", "by_sweep"}
        assert len(result[name]["by_sweep"]) == 3
    assert 0 <= result["truth_rank"] <= 1
    assert set(result["ess"]) == {"tau,mu", "c"}
    assert {"limit", "log_evidence", "kl_global", "seconds"} <= set(result)
    assert not {"paper", "rws"} & set(result)  # only what was asked for


def test_evaluation_adds_shipped_variants_that_were_asked_for(run):
    budget = ["--instances", 2, "--points", 6, "--num-sweeps", 1, "--num-particles", 2, "--num-populations", 1]
    code, text, err = run("evaluate", "gmm", *budget, "--beside", "rws", "--json")
    assert code == 0, err
    result = json.loads(text)
    assert result["rws"]["budget"]["num_particles"] == 4
    assert "paper" not in result


def test_showing_a_run_builds_nothing(run, monkeypatch):
    monkeypatch.setattr("popgibbs.paper.runs.load", lambda *_, **__: pytest.fail("a sampler was built"))
    code, text, err = run("show", "gmm")
    assert code == 0, err
    assert "257 parameters" in text  # of the second block: 32 + 32·4 + 32·2 + 1 + 32


def test_training_resumes_and_a_run_can_be_shown_exported_and_sampled(run, data, tmp_path):
    out = tmp_path / "run"
    code, _, err = run("train", "gmm", "--out", out, "--steps", 3, "--checkpoint-every", 2)
    assert code == 0, err
    assert run("train", "gmm", "--out", out, "--steps", 3)[0] == 1  # never overwrites a run
    code, _, err = run("train", "gmm", "--out", out, "--steps", 3, "--step", 2)
    assert (code, "--step 2 selects the checkpoint to resume from; add --resume" in err) == (1, True)
    code, text, err = run("train", "gmm", "--out", out, "--resume")
    assert (code, "already complete" in text) == (0, True), err
    code, _, err = run("train", "gmm", "--out", out, "--resume", "--steps", 9)
    assert code == 1
    assert "num_steps=3" in err
    assert "step 3" in run("show", out)[1]
    assert "step 2" in run("show", out, "--step", 2)[1]
    code, _, err = run("show", out, "--step", 7)
    assert (code, "no checkpoint of step 7" in err) == (1, True)
    assert run("export", out, "--out", tmp_path / "alone")[0] == 0
    for trained, posterior in ((out, "p.nc"), (tmp_path / "alone", "q.nc")):
        assert run("sample", trained, data, "--out", tmp_path / posterior, "--num-sweeps", 0)[0] == 0
    of_run, of_export = (az.from_netcdf(tmp_path / name).posterior for name in ("p.nc", "q.nc"))
    assert of_run.equals(of_export)
    code, _, err = run("export", out, "--out", tmp_path / "alone")
    assert (code, "alone exists already" in err) == (1, True)


def test_a_damaged_checkpoint_is_reported_in_one_sentence_and_an_older_one_used(run, data, tmp_path):
    out = tmp_path / "run"
    for _ in range(2):
        sampler = GMM.build(GMM.default, jax.random.key(0), GMM.size)
        sampler.save(out, read_about(GMM.shipped / GMM.default)["configuration"])
    (out / "1" / "about" / "metadata").write_text("{")
    for command in (["show", out], ["export", out, "--out", tmp_path / "alone"]):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            code, _, err = run(*command)
        assert code == 0
        (warning,) = err.strip().splitlines()
        assert warning.startswith("popgibbs: the checkpoint")
        assert warning.endswith("/run/0 is used instead")
    (out / "0" / "about" / "metadata").write_text("{")
    sampled = ["sample", out, data, "--out", tmp_path / "p.nc"]
    for command in (["show", out], sampled, ["export", out, "--out", "x"]):
        code, _, err = run(*command)
        assert code == 1
        assert err.strip() == f"popgibbs: the checkpoint {out}/1 is damaged: its description cannot be read"


def _npz(path, **arrays):
    np.savez(path, **arrays)
    return path


BAD_DATA = {
    "not a NumPy archive": lambda path: path.write_text("x") and path,
    "lacks the arrays ['x']": lambda path: _npz(path, y=np.zeros((2, 3, 2))),
    "which the model does not take": lambda path: _npz(path, x=np.zeros((2, 3, 2)), y=np.zeros(2)),
    "not finite": lambda path: _npz(path, x=np.full((2, 3, 2), np.nan)),
    "shape (points, 2)": lambda path: _npz(path, x=np.zeros((2, 3, 3))),
    "not numeric": lambda path: _npz(path, x=np.full((2, 3, 2), "a")),
    "adds up to 7": lambda path: _npz(path, x=np.zeros((6, 2)), x_lengths=[3, 4]),
    "positive whole numbers": lambda path: _npz(path, x=np.zeros((6, 2)), x_lengths=[6, 0]),
    "there are no instances": lambda path: _npz(path, x=np.zeros((0, 3, 2))),
    "there is no file": lambda path: path,
}


@pytest.mark.parametrize("sentence", BAD_DATA)
def test_bad_data_is_reported_in_one_sentence_and_changes_nothing(run, tmp_path, sentence):
    out = tmp_path / "posterior.nc"
    out.write_text("mine")
    code, text, err = run("sample", "gmm", BAD_DATA[sentence](tmp_path / "bad.npz"), "--out", out)
    assert code == 1
    assert sentence in err
    assert text == ""
    assert len(err.strip().splitlines()) == 1
    assert out.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) in (["bad.npz", "posterior.nc"], ["posterior.nc"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["evaluate", "nope"], "no experiment 'nope'"),
        (["train", "gmm", "--variant", "nope", "--out", "never"], "no variant 'nope'"),
        (["train", "gmm", "--out", "/proc/nowhere"], "cannot write to /proc/nowhere"),
        (["train", "gmm", "--out", "never", "--resume"], "no directory never"),
        (["show", "never"], "no directory never"),
        (["export", "never", "--out", "alone"], "no directory never"),
        (["evaluate", "gmm", "--run", "never"], "no directory never"),
        (
            ["evaluate", "gmm", "--digits", "3"],
            "'gmm' has no option --digits; the sizes of its instances are --points and --instances",
        ),
        (["evaluate", "gmm", "--num-particle", "3"], "'gmm' has no option --num-particle"),
        (["evaluate", "gmm", "--points", "few"], "--points takes a whole number of at least 1, not 'few'"),
        (["evaluate", "gmm", "--points"], "--points takes a whole number of at least 1"),
        (["evaluate", "gmm", "--size", "points=0"], "--points takes a whole number of at least 1, not '0'"),
        (["evaluate", "bmnist", "--videos", "1"], "--videos must be at least 2"),
        (["evaluate", "bmnist", "--digits", "10"], "there can be at most 9"),
    ],
)
def test_a_wrong_argument_is_reported_in_one_sentence(run, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*arguments)
    assert code == 1
    assert sentence in err
    assert not list(tmp_path.iterdir())


def test_a_value_out_of_range_is_a_usage_error(run):
    code, _, err = run("evaluate", "gmm", "--num-particles", 0)
    assert code == 2
    assert "num-particles" in err


def test_an_unwritable_output_folder_is_named(run, data):
    code, _, err = run("sample", "gmm", data, "--out", "/proc/nowhere/p.nc")
    assert code == 1
    assert "/proc/nowhere" in err


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [((2, 5, 3), "shape (points, 2)"), ((2, 3, 2), "3 points, fewer than the mixture's 4 clusters")],
)
def test_instances_that_do_not_fit_the_deep_mixture_are_reported_in_one_sentence(run, tmp_path, shape, sentence):
    out = tmp_path / "posterior.nc"
    code, text, err = run("sample", "dmm", _npz(tmp_path / "bad.npz", x=np.zeros(shape)), "--out", out)
    assert (code, text, out.exists()) == (1, "", False)
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_evaluation_of_the_deep_mixture_measures_the_curve_and_draws(run, tmp_path, monkeypatch):
    (tmp_path / "default").symlink_to(DMM.shipped / "default")
    monkeypatch.setattr("popgibbs.paper.dmm.experiment.EXPERIMENT", replace(DMM, shipped=tmp_path))
    monkeypatch.setattr("popgibbs.paper.plots.pictures.SHOWN", (1, 2))
    budget = ["--instances", 2, "--points", 12, "--num-sweeps", 1, "--num-particles", 2]
    code, text, err = run("evaluate", "dmm", *budget, "--figure", tmp_path / "samples.png", "--json")
    assert code == 0, err
    result = json.loads(text)
    assert result["radius"] > 0
    assert len(result["coverage"]) == 12
    np.testing.assert_allclose(sum(result["coverage"]), 1)
    assert 0 <= result["assignment_accuracy"] <= 1
    assert (tmp_path / "samples.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["train", "gmm"], "stopped after step 3; continue with --resume"),
        (["reproduce", "gmm"], "stopped after step 3; run the same command again to continue"),
    ],
)
def test_stopping_says_how_to_continue(run, monkeypatch, tmp_path, command, sentence):
    def stop(*_, **__):
        (tmp_path / "run" / "3").mkdir(parents=True)
        raise Interrupted("stopped after step 3")

    monkeypatch.setattr(type(GMM), "fit", stop)
    monkeypatch.setattr("popgibbs.paper.reproduction.reproduce", stop)
    code, _, err = run(*command, "--out", tmp_path / "run")
    assert code == 130
    assert sentence in err


# Signals and the order of checks ----------------------------------------------------------------------------------------


def signalled(number):
    def send(*_, **__):
        os.kill(os.getpid(), number)
        time.sleep(10)  # the signal interrupts it

    return send


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("sample", "stopped; nothing was written"),
        ("evaluate", "stopped; the evaluation was not finished"),
        ("train", "stopped; nothing was saved yet"),
    ],
)
def test_a_signal_is_reported_in_one_sentence(run, monkeypatch, data, tmp_path, command, sentence, number, code):
    out = tmp_path / "out"
    arguments = {"sample": ["gmm", data, "--out", out], "evaluate": ["gmm"], "train": ["gmm", "--out", out]}
    monkeypatch.setattr(APG, "sample", signalled(number))
    monkeypatch.setattr(type(GMM), "fit", signalled(number))
    before = signal.getsignal(signal.SIGTERM)
    found, text, err = run(command, *arguments[command])
    assert (found, text, err.strip()) == (code, "", sentence)
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_while_the_posterior_is_written_leaves_the_old_file(run, monkeypatch, data, tmp_path):
    class Written:
        def to_netcdf(self, path):
            Path(path).write_text("half")
            signalled(signal.SIGTERM)()

    out = tmp_path / "posterior.nc"
    out.write_text("mine")
    monkeypatch.setattr(Posterior, "to_arviz", lambda self: Written())
    code, text, _ = run("sample", "gmm", data, "--out", out, "--num-sweeps", 0)
    assert (code, text, out.read_text()) == (143, "", "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npz", "posterior.nc"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["sample", "gmm", "nope.npz", "--out", "p.nc"], "there is no file nope.npz"),
        (["sample", "gmm", "bad.npz", "--out", "p.nc"], "'x' has values that are not finite"),
        (["sample", "gmm", "wide.npz", "--out", "p.nc"], "shape (points, 2)"),
        (["sample", "gmm", "data.npz", "--out", "nowhere/p.nc"], "there is no directory"),
        (["sample", "gmm", "data.npz", "--out", "."], ". is a directory; name a file in it"),
        (["evaluate", "gmm", "--figure", "data.npz/figure.png"], "there is no directory"),
        (["evaluate", "gmm", "--figure", "."], ". is a directory; name a file in it"),
        (["evaluate", "gmm", "--figure", "figure.nope"], "cannot draw to figure.nope"),
        (["evaluate", "gmm", "--beside", "rws,nope"], "'gmm' has no variant 'nope'"),
        (["evaluate", "gmm", "--beside", "default"], "this is the variant that is evaluated anyway"),
        (["evaluate", "gmm", "--step", "3"], "there is no checkpoint of step 3"),
        (["train", "gmm", "--out", "data.npz"], "data.npz is a file; name a directory"),
        (["train", "gmm", "--out", "/proc/nowhere"], "cannot write to /proc/nowhere"),
        (["train", "gmm", "--out", "/proc/nowhere", "--variant", "nope"], "'gmm' has no variant 'nope'"),
        (["train", "gmm", "--out", "held"], "held already holds a run; continue it with --resume"),
        (["export", "never", "--out", "data.npz"], "data.npz is a file; name a directory"),
        (["reproduce", "gmm", "--preset", "nope"], "there is no preset 'nope'"),
        (["reproduce", "gmm", "--out", "data.npz"], "data.npz is a file; name a directory"),
        (["demo", "--out", "data.npz"], "data.npz is a file; name a directory"),
    ],
)
def test_files_are_checked_before_a_sampler_is_built(run, monkeypatch, data, tmp_path, arguments, sentence):
    _npz(tmp_path / "bad.npz", x=np.full((2, 3, 2), np.nan))
    _npz(tmp_path / "wide.npz", x=np.zeros((2, 3, 3)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "held" / "3").mkdir(parents=True)
    for building in ("popgibbs.paper.runs.load", "popgibbs.paper.experiment.Experiment.fit"):
        monkeypatch.setattr(building, lambda *_, **__: pytest.fail("a sampler was built"))
    code, text, err = run(*arguments)
    assert (code, text) == (1, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
