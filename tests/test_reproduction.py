"""The paper by one call: what was measured is kept, tables hold the paper's numbers, bad directories change nothing."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from rich.console import Console

from popgibbs import reproduction
from popgibbs.experiments.bmnist import study as bmnist
from popgibbs.experiments.dmm import study as dmm
from popgibbs.experiments.gmm import study as gmm
from popgibbs.experiments.study import Preset, Setting
from popgibbs.reproduction import methods
from popgibbs.reproduction.pages import LABELS, page
from popgibbs.reproduction.store import Store

pytestmark = pytest.mark.usefixtures("quick_compilation")
SIZE = {"points": 12}
TINY = Preset(
    settings=(Setting(SIZE, 5, chunk=3),),
    num_particles=3,
    num_sweeps=2,
    tuning_instances=2,
    num_runs=2,
    budget=12,
    budget_ks=(2, 3),
    budget_instances=2,
    learning_steps=3,
    pictures=(SIZE,),
    scaled_down="everything",
)
SMALL = replace(
    gmm.STUDY,
    presets={"tiny": TINY},
    leapfrog=(1,),
    shown_ks=(2,),
    learning=gmm.STUDY.learning._replace(ks=(2,), budget=6),
    one_instance=lambda methods: {"APG": methods["APG"]},
)


@pytest.mark.parametrize("study", [gmm.STUDY, dmm.STUDY, bmnist.STUDY], ids=lambda study: study.experiment.name)
def test_there_is_a_method_for_every_number_of_the_paper(study):
    samplers = {name: study.experiment.build(name, jax.random.key(0), study.experiment.size) for name in study.variants}
    moved = dict.fromkeys(study.leapfrog, samplers["rws"])
    methods = study.methods(samplers, moved, num_sweeps=19, num_particles=10)
    shown = {"APG", *methods, *(f"APG, K={k}" for k in study.shown_ks)}
    for number, by_setting in study.paper.items():
        assert number in LABELS
        for setting, reported in by_setting.items():
            assert setting in [of.label for of in study.presets["paper"].settings]
            assert set(reported) <= shown


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A directory with a whole, tiny reproduction."""
    directory = tmp_path_factory.mktemp("reproduced") / "gmm"
    reproduction.reproduce(SMALL, "tiny", directory, seed=1, console=Console(quiet=True))
    return directory


@pytest.fixture
def results(measured):
    return json.loads((measured / "results.json").read_text())


def test_all_methods_are_measured_on_all_instances_of_all_chunks(measured, results):
    (setting,) = results["settings"]
    assert setting["instances"] == 5
    assert next(iter(setting["methods"])) == "APG"
    assert {"RWS", "BPG", "HMC-RWS, LF=1", "Gibbs", "Gibbs, resampled start"} <= set(setting["methods"])
    by_chunk = [json.loads((measured / f"measured/12-points/apg/{part}.json").read_text()) for part in (0, 1)]
    last = np.concatenate([chunk["log_joint"] for chunk in by_chunk])[:, -1]
    assert len(last) == 5
    assert setting["methods"]["APG"]["log_joint"]["mean"] == pytest.approx(last.mean())
    rws = np.concatenate(
        [json.loads((measured / f"measured/12-points/rws/{p}.json").read_text())["log_joint"] for p in (0, 1)]
    )
    paired = last - rws[:, -1]
    assert setting["methods"]["RWS"]["behind"]["mean"] == pytest.approx(paired.mean())
    assert setting["methods"]["RWS"]["behind"]["se"] == pytest.approx(paired.std(ddof=1) / np.sqrt(5))


def test_budgets_are_matched(results):
    spent = {label: (row["K"], row["L"], row["evaluations"]) for label, row in results["settings"][0]["methods"].items()}
    assert spent["APG"] == spent["Gibbs"] == spent["BPG"] == (3, 3, 9)
    assert spent["RWS"] == (1, 9, 9)
    assert set(results["fixed_budget"]["strategies"]) == {"decomposed", "joint"}
    assert set(results["learning"]["by_k"]["2"]) == {"1", "2", "3"}


def test_numbers_come_with_what_is_behind_them(results):
    assert results["seed"] == 1
    assert results["machine"]["cores"] >= 1
    assert "jax" in results["machine"]["versions"]
    assert results["samplers"]["paper"]["step"] == 20_000
    assert results["scaled_down"] == "everything"


def test_figures_are_written(measured, results):
    assert results["figures"] == ["convergence.png", "fixed_budget.png", "learning.png", "samples-12-points.png"]
    assert all((measured / name).stat().st_size > 1000 for name in results["figures"])


def test_what_was_measured_is_not_measured_again(measured, results, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("measured twice")

    monkeypatch.setattr(methods, "run", fail)
    monkeypatch.setattr(methods, "tuned", fail)
    reproduction.reproduce(SMALL, "tiny", measured, seed=1, console=Console(quiet=True))
    assert json.loads((measured / "results.json").read_text()) == results


def test_the_page_has_the_papers_numbers_the_limit_and_both_orders(results):
    label = results["settings"][0]["label"]
    told = {**results, "paper": {"log_joint": {label: {"APG": -446.9, "RWS": -1e9, "Gibbs": 1e9, "APG, K=2": -481.6}}}}
    text = page(told)
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    assert "-446.9" in rows["APG"]
    assert "-481.6" in rows["APG, K=2"]
    assert f"{results['settings'][0]['limit']['mean']:.1f}" in rows["limit"]
    assert "The paper's order: Gibbs > APG > RWS." in text
    assert "Gibbs differs: " in text


def test_a_directory_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something else; choose another directory"):
        Store(tmp_path, {"seed": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_another_setup_is_refused_by_what_differs(tmp_path):
    Store(tmp_path / "a", {"seed": 1, "preset": "quick"})
    with pytest.raises(ValueError, match="was begun with seed=1, now it is 2"):
        Store(tmp_path / "a", {"seed": 2, "preset": "quick"})


def test_a_damaged_measurement_is_named(tmp_path):
    store = Store(tmp_path / "a", {"seed": 1})
    assert store.get("K·L/one, two", lambda: [1.5]) == [1.5]
    (path,) = (tmp_path / "a/measured").rglob("*.json")
    path.write_text("[1.")
    with pytest.raises(ValueError, match=r"kl/one-two\.json is not JSON; delete it"):
        store.get("K·L/one, two", lambda: [2.5])


def test_presets_are_named_when_there_is_no_such(tmp_path):
    with pytest.raises(ValueError, match="no preset 'slow'; there are tiny"):
        reproduction.reproduce(SMALL, "slow", tmp_path / "a", seed=1, console=Console(quiet=True))
    assert not (tmp_path / "a").exists()
