"""The paper in one call: measurements are kept, tables have the paper's numbers, bad directories are refused."""

import json

import jax
import numpy as np
import pytest
from rich.console import Console
from scipy.stats import norm

import popgibbs as pg
from models import located_sampler
from popgibbs.evaluation import matched
from popgibbs.paper import reproduction
from popgibbs.paper.bmnist import study as bmnist
from popgibbs.paper.dmm import study as dmm
from popgibbs.paper.experiment import Experiment, MixtureDrawing, Training, Variant
from popgibbs.paper.gmm import study as gmm
from popgibbs.paper.reproduction import methods
from popgibbs.paper.reproduction.pages import LABELS, overview_table, page
from popgibbs.paper.reproduction.store import Store
from popgibbs.paper.reproduction.work import Work
from popgibbs.paper.study import Learning, Preset, Setting, Study
from popgibbs.paper.tables import held_out

pytestmark = pytest.mark.usefixtures("quick_compilation")


def simulate(key, points):
    key_mu, key_x = jax.random.split(key)
    mu = jax.random.normal(key_mu)
    return {"x": mu + jax.random.normal(key_x, (points,))}, {"mu": mu}


def methods_of_toy(samplers, moved, *, num_sweeps, num_particles):
    apg, rws = samplers["default"], samplers["rws"]
    found = matched(apg, rws=rws, bpg=apg, moved=moved, num_sweeps=num_sweeps, num_particles=num_particles)
    return {label: found[label] for label in ("APG", "RWS", "HMC-RWS, LF=1") if label in found}


def draw(model, instance, sample):
    points = np.stack([instance["x"], np.zeros_like(instance["x"])], axis=-1)
    return MixtureDrawing(points, np.zeros(len(points), int), np.zeros((1, 2)), np.zeros((1, 2, 2)))


SIZE = {"points": 3}
TRAINING = Training(num_steps=2, learning_rate=0.1, num_sweeps=1, num_particles=3, batch_size=2, size=SIZE)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The paper's comparisons on a model with one latent, whose samplers are not in the package."""
    experiment = Experiment(
        name="toy",
        about="a number behind all points",
        data={"x": "points"},
        build=lambda variant, key, size: located_sampler(example={"x": np.zeros(3)}),
        variants={"default": Variant(training=TRAINING), "rws": Variant(training=TRAINING, one_shot=True)},
        simulate=simulate,
        check=lambda instance, where: None,
        measures={},
        draw=draw,
        size=SIZE,
        num_populations=1,
        shipped=tmp_path_factory.mktemp("shipped"),
        generating=lambda model: model,
    )
    tiny = Preset(
        settings=(Setting(SIZE, 5, chunk=3),),
        num_particles=3,
        num_sweeps=2,
        tuning_instances=2,
        num_runs=2,
        budget=12,
        budget_ks=(2, 3),
        budget_instances=2,
        learning_ks=(2,),
        learning_steps=3,
        pictures=(SIZE,),
        scaled_down="everything",
    )
    return Study(
        experiment=experiment,
        variants=("default", "rws"),
        methods=methods_of_toy,
        one_instance=lambda methods: {"APG": methods["APG"]},
        leapfrog=(1,),
        shown_ks=(2,),
        strategies=lambda samplers: {"one": samplers["default"], "other": samplers["rws"]},
        learning=Learning("default", lambda apg, key: {"mean": 1.0, "se": 0.1}, "a measure", budget=6),
        presets={"tiny": tiny},
        paper={"log_joint": {"3 points": {"APG": -446.9, "RWS": 1e9, "APG, K=2": -481.6}}},
        limits={},
        reasons={"RWS": "it is made up"},
    )


@pytest.mark.parametrize(
    ("study", "blocks"),
    [
        pytest.param(gmm.STUDY, [("tau", "mu"), ("c",)], id="gmm"),
        pytest.param(dmm.STUDY, [("mu",), ("c", "h")], id="dmm"),
        pytest.param(bmnist.STUDY, [("where",), ("what",)], id="bmnist"),
    ],
)
def test_there_is_a_method_for_every_number_of_the_paper(study, blocks):
    apg = pg.APG(lambda x: None, data={"x": "points"}, blocks=[pg.Block(*sites, proposal=pg.Prior()) for sites in blocks])
    methods = study.methods(
        dict.fromkeys(study.variants, apg), dict.fromkeys(study.leapfrog, apg), num_sweeps=19, num_particles=10
    )
    shown = {"APG", *methods, *(f"APG, K={k}" for k in study.shown_ks)}
    for number, by_setting in study.paper.items():
        assert number in LABELS
        for label, reported in by_setting.items():
            assert set(reported) <= shown
            for preset in study.presets.values():
                (setting,) = [one for one in preset.settings if one.label == label]
                assert all(setting.measures(method.split(", K=")[0]) for method in reported)


def test_a_setting_may_be_measured_with_some_methods_only(study, tmp_path):
    setting = Setting(SIZE, 5, only=("RWS",))
    store = Store(tmp_path / "a", {})
    work = Work(study, study.presets["tiny"], store, 1, Console(quiet=True))
    assert list(methods.methods_of(work, dict.fromkeys(study.variants, located_sampler()), setting)) == ["RWS"]
    assert not (tmp_path / "a" / "measured").exists()  # no step size was tuned


@pytest.fixture(scope="module")
def measured(study, tmp_path_factory):
    """A directory with a complete, tiny reproduction."""
    directory = tmp_path_factory.mktemp("reproduced") / "toy"
    reproduction.reproduce(study, "tiny", directory, seed=1, console=Console(quiet=True))
    return directory


@pytest.fixture
def results(measured):
    return json.loads((measured / "results.json").read_text())


def last_log_joints(directory, method):
    chunks = [json.loads((directory / f"measured/3-points/{method}/{part}.json").read_text()) for part in (0, 1)]
    return np.concatenate([chunk["log_joint"] for chunk in chunks])[:, -1]


def test_all_methods_are_measured_on_all_instances_of_all_chunks(measured, results):
    (setting,) = results["settings"]
    assert list(setting["methods"]) == ["APG", "RWS", "HMC-RWS, LF=1"]
    apg, rws = last_log_joints(measured, "apg"), last_log_joints(measured, "rws")
    assert len(apg) == setting["instances"] == 5
    assert setting["methods"]["APG"]["log_joint"]["mean"] == pytest.approx(apg.mean())
    behind = setting["methods"]["RWS"]["behind"]
    assert behind["mean"] == pytest.approx((apg - rws).mean())
    assert behind["se"] == pytest.approx((apg - rws).std(ddof=1) / np.sqrt(5))


def test_the_limit_is_the_log_joint_at_the_generating_latents(study, results):
    parts = [held_out(study.experiment, 1, count, SIZE, part) for part, count in ((0, 3), (1, 2))]
    x, mu = (np.concatenate([part[of][name] for part in parts]) for of, name in ((0, "x"), (1, "mu")))
    at_truth = norm.logpdf(mu) + norm.logpdf(x, mu[:, None]).sum(axis=1)
    assert results["settings"][0]["limit"]["mean"] == pytest.approx(at_truth.mean(), rel=1e-5)


def test_budgets_are_matched(results):
    spent = {label: (row["K"], row["L"], row["evaluations"]) for label, row in results["settings"][0]["methods"].items()}
    assert spent["APG"] == spent["HMC-RWS, LF=1"] == (3, 3, 9)
    assert spent["RWS"] == (1, 9, 9)
    assert results["fixed_budget"]["strategies"].keys() == {"one", "other"}
    assert results["learning"]["by_k"]["2"].keys() == {"1", "2", "3"}


def test_results_record_seed_machine_and_samplers(results):
    assert results["seed"] == 1
    assert results["machine"]["cores"] >= 1
    assert "jax" in results["machine"]["versions"]
    assert results["samplers"]["rws"]["step"] == 2
    assert results["scaled_down"] == "everything"


def test_figures_are_written(measured, results):
    assert results["figures"] == ["convergence.png", "fixed_budget.png", "learning.png", "samples-3-points.png"]
    assert all((measured / name).stat().st_size > 1000 for name in results["figures"])


def test_nothing_is_measured_twice(study, measured, results, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("measured twice")

    monkeypatch.setattr(methods, "run", fail)
    monkeypatch.setattr(methods, "tune_step_size", fail)
    monkeypatch.setattr(reproduction, "draw_samples", fail)
    reproduction.reproduce(study, "tiny", measured, seed=1, console=Console(quiet=True))
    assert json.loads((measured / "results.json").read_text()) == results


def test_the_page_has_the_papers_numbers_the_limit_and_both_orders(results):
    text = page(results)
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    assert "-446.9" in rows["APG"]
    assert "-481.6" in rows["APG, K=2"]
    assert f"{results['settings'][0]['limit']['mean']:.1f}" in rows["limit"]
    assert "The paper's order: RWS > APG." in text
    assert ("RWS differs: it is made up." in text) == ("best first: APG > RWS" in text)


def test_the_overview_has_one_column_per_setting_with_the_papers_numbers_in_brackets(results):
    (small,) = results["settings"]
    large = {**small, "label": "6 points", "instances": 2000, "limit": None}
    both = {**results, "settings": [small, large], "limits": {"log_joint": {"6 points": -9.0}}}
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in overview_table(both, "log_joint").splitlines()]
    rows = {line[0]: line[1:] for line in lines if line}
    apg = small["methods"]["APG"]["log_joint"]
    found, found_early = (f"{entry['mean']:,.1f} ± {entry['se']:.1f}" for entry in (apg, apg["by_sweep"][1]))
    assert rows[""] == ["3 points, 5 held-out instances", "6 points, 2,000 held-out instances"]
    assert rows["APG, K=2"] == [f"{found_early} (-481.6)", found_early]
    assert rows["APG"] == [f"{found} (-446.9)", found]
    assert rows["limit"] == [f"{small['limit']['mean']:.1f} ± {small['limit']['se']:.1f}", "about -9"]
    assert list(rows)[-1] == "limit"
    assert overview_table(both, "log_joint") in page(both)


def test_a_directory_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files; choose another directory"):
        Store(tmp_path, {"seed": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_different_setup_is_refused_and_the_difference_named(tmp_path):
    Store(tmp_path / "a", {"seed": 1, "preset": "quick"})
    with pytest.raises(ValueError, match="was started with seed=1, now it is 2"):
        Store(tmp_path / "a", {"seed": 2, "preset": "quick"})


def test_measurements_of_different_samplers_are_not_mixed(study, measured, monkeypatch):
    monkeypatch.setattr(reproduction, "fingerprint", lambda run: "another")
    (study.experiment.shipped / "rws").mkdir()
    with pytest.raises(ValueError, match="was started with different samplers; choose another directory"):
        reproduction.reproduce(study, "tiny", measured, seed=1, console=Console(quiet=True))
    (study.experiment.shipped / "rws").rmdir()


def test_a_damaged_measurement_is_named(tmp_path):
    store = Store(tmp_path / "a", {"seed": 1})
    assert store.get("K·L/one, two", lambda: [1.5]) == [1.5]
    (path,) = (tmp_path / "a/measured").rglob("*.json")
    path.write_text("[1.")
    with pytest.raises(ValueError, match=r"kl/one-two\.json is not JSON; delete it to measure it again"):
        store.get("K·L/one, two", lambda: [2.5])


def test_an_unknown_preset_is_refused_with_the_known_ones(study, tmp_path):
    with pytest.raises(ValueError, match="no preset 'slow'; there are tiny"):
        reproduction.reproduce(study, "slow", tmp_path / "a", seed=1, console=Console(quiet=True))
    assert not (tmp_path / "a").exists()
