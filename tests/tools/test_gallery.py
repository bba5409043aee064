"""The references of the gallery against theorems and exact answers at small sizes."""

import json
from itertools import product
from types import SimpleNamespace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from tests import oracles
from tools.gallery import enumeration, gaussian, gibbs, measures, nuts, quadrature, report, stages
from tools.gallery.entries import ENTRIES
from tools.gallery.moments import Moments, gaussian_components, poisson_components, words_by_document


def test_eight_schools_by_quadrature_has_the_evidence_and_the_means_of_a_double_integral():
    instance = {"y": np.array([3.0, -8.0]), "sigma": np.array([4.0, 6.0])}
    mu, log_tau = np.meshgrid(np.linspace(-40, 40, 801), np.linspace(-12, 16, 2_801))
    tau = np.exp(log_tau)
    joint = stats.norm.pdf(mu, 0, 5) * stats.halfcauchy.pdf(tau, 0, 5) * tau * 0.1 * 0.01
    for y, sigma in zip(*instance.values(), strict=True):
        joint *= stats.norm.pdf(y, mu, np.hypot(sigma, tau))
    found = quadrature.eight_schools(instance)
    assert found.log_evidence == pytest.approx(np.log(joint.sum()), abs=1e-4)
    assert found.mean["mu"][0, 0] == pytest.approx(np.sum(joint * mu) / joint.sum(), abs=1e-3)


def test_gamma_poisson_by_quadrature_has_the_evidence_and_the_means_of_a_double_integral():
    a, b = np.meshgrid(np.linspace(0.02, 40, 2_000), np.linspace(0.02, 40, 2_000))
    joint = stats.nbinom.pmf(5, a, b / (b + 2.0)) * stats.gamma.pdf(a, 3) * stats.gamma.pdf(b, 3) * 0.02**2
    found = quadrature.gamma_poisson({"y": np.array([5]), "exposure": np.array([2.0])})
    assert found.log_evidence == pytest.approx(np.log(joint.sum()), abs=1e-4)
    assert found.mean["rate"][0, 0] == pytest.approx(np.sum(joint * (a + 5) / (b + 2)) / joint.sum(), abs=1e-3)


def test_ppca_is_the_conditional_of_the_joint_gaussian():
    rng = np.random.default_rng(0)
    model = SimpleNamespace(weight=rng.normal(size=(2, 4)), bias=rng.normal(size=4))
    x = rng.normal(size=(3, 4))
    found = gaussian.ppca({"x": x}, model, 0.7)
    gain = model.weight @ np.linalg.inv(model.weight.T @ model.weight + 0.49 * np.eye(4))
    np.testing.assert_allclose(found.mean["z"].reshape(3, 2), (x - model.bias) @ gain.T)
    np.testing.assert_allclose(found.sd["z"][0, :2], np.sqrt(np.diag(np.eye(2) - gain @ model.weight.T)))


def test_enumerated_evidence_sums_to_one_or_is_a_known_marginal():
    corpora = np.array(list(product(range(12), repeat=2)))
    total = sum(np.exp(enumeration.log_evidence(enumeration.lda, {"w": row[None]})) for row in corpora)
    assert total == pytest.approx(1.0)
    counts = np.arange(150)
    found = [enumeration.log_evidence(enumeration.poisson_mixture, {"y": np.array([y])}) for y in counts]
    np.testing.assert_allclose(found, stats.nbinom(2, 0.2 / 1.2).logpmf(counts))
    x = np.array([[1.0, -4.0]])
    marginal = stats.t(df=4, scale=np.sqrt(11.0)).logpdf(x).sum()
    assert enumeration.log_evidence(enumeration.gaussian_mixture, {"x": x}) == pytest.approx(marginal)


MIXTURES = {
    "gaussian": (
        gibbs.gaussian_mixture,
        enumeration.gaussian_mixture,
        {"x": np.array([[0.0, 1.0], [0.5, 0.0], [4.0, -3.0]])},
        {"c": np.array([0, 0, 1])},
        lambda state: state["mu"].sum(axis=(1, 2)),
        lambda x, one_hot: gibbs.normal_gamma(np.broadcast_to(x, (len(one_hot), *x.shape)), one_hot)[3].sum(axis=(1, 2)),
    ),
    "poisson": (
        gibbs.poisson_mixture,
        enumeration.poisson_mixture,
        {"y": np.array([1, 6, 7])},
        {"c": np.array([0, 1, 1])},
        lambda state: state["rate"].sum(axis=1),
        lambda y, one_hot: np.sum((2 + y @ one_hot) / (0.2 + one_hot.sum(axis=1)), axis=1),
    ),
    "lda": (
        gibbs.lda,
        enumeration.lda,
        {"w": np.array([[0, 0, 1], [1, 2, 0]])},
        {"z": np.zeros((2, 3), int)},
        lambda state: words_by_document(state)["words"][:, 0],
        lambda w, one_hot: _first_word(w, one_hot.reshape(-1, 2, 3, 3)),
    ),
}


def _first_word(w, one_hot):
    """The posterior mean of the first word's probability in the first document, given assignments."""
    theta = (0.5 + one_hot[:, 0].sum(axis=1)) / 4.5
    phi = (0.5 + np.einsum("rdnk,dn->rk", one_hot, w == 0)) / (6 + one_hot.sum(axis=(1, 2)))
    return np.sum(theta * phi, axis=1)


@pytest.mark.parametrize("name", MIXTURES)
def test_gibbs_has_the_posterior_means_of_enumeration(name):
    chains, log_joint, data, latents, quantity, given = MIXTURES[name]
    (array,) = data.values()
    c = enumeration.assignments(array.size if name == "lda" else len(array))
    log_p = log_joint(data, c)
    exact = np.exp(log_p - np.logaddexp.reduce(log_p)) @ given(array, np.eye(3)[c])
    rows = ({key: np.repeat(value[None], 400, axis=0) for key, value in one.items()} for one in (data, latents))
    steps = chains(np.random.default_rng(0), *rows)
    draws = [quantity(next(steps)) for _ in range(150)][50:]
    oracles.assert_mean(np.mean(draws, axis=0), exact)  # one number for each independent chain


def test_mixture_quantities_do_not_depend_on_labels():
    rng = np.random.default_rng(0)
    order = [2, 0, 1]
    gaussians = {"mu": rng.normal(size=(5, 3, 2)), "tau": rng.gamma(2.0, size=(5, 3, 2))}
    poissons = {"rate": rng.gamma(2.0, size=(5, 3)), "weights": rng.dirichlet(np.ones(3), 5)}
    for quantities, latents in ((gaussian_components, gaussians), (poisson_components, poissons)):
        permuted = quantities({name: values[:, order] for name, values in latents.items()})
        for name, values in quantities(latents).items():
            np.testing.assert_allclose(permuted[name], values)


def normals(x):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", len(x)):
        z = numpyro.sample("z", dist.Normal(mu, 1.0))
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


def test_nuts_has_the_moments_of_a_gaussian_model():
    x = np.array([[0.5, 2.0], [-1.0, 0.0]], np.float32)
    found = nuts.run(normals, ["z"], [{"x": row} for row in x])
    assert found.reliable is not None
    assert found.reliable.all()
    assert set(found.mean) == {"mu", "z"}  # without the non-centred site
    # x_n | mu ~ N(mu, 2), so mu has precision 1 + 2/2. 4,000 draws are worth at least 1,000: five standard errors.
    np.testing.assert_allclose(found.mean["mu"][:, 0], x.sum(axis=1) / 4, atol=5 * np.sqrt(0.5 / 1_000))
    np.testing.assert_allclose(found.sd["mu"], np.sqrt(0.5), rtol=5 / np.sqrt(2_000))


def test_coverage_and_errors_of_draws_from_the_reference():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=2_000)
    draws = rng.normal(size=(400, 2_000))
    share = measures.inside(draws, np.full(400, 1 / 400), truth).mean()
    assert abs(share - 0.9) < 5 * np.sqrt(0.09 / 2_000) + 1 / 400
    reference = Moments({"a": np.zeros((3, 2))}, {"a": np.ones((3, 2))}, reliable=np.array([True, True, False]))
    ours = Moments({"a": np.array([[0.1, -0.1], [0.1, 0.1], [9.0, 9.0]])}, {"a": np.full((3, 2), 1.1)})
    found = measures.errors(ours, reference)
    assert found["rms"]["all"] == pytest.approx(0.1)
    assert found["sd_ratio"]["a"] == pytest.approx(1.1)
    assert found["num_unreliable"] == 1


def test_measured_stages_are_read_and_the_table_marks_what_misses(tmp_path):
    made = {
        "name": "lda",
        "stage": "trained",
        "settings": {"num_populations": 10, "num_particles": 20, "num_sweeps": 19, "instances": 500, "compared": 100},
        "coverage": {"all": 0.899},
        "rms": {"all": 0.4},
        "sd_ratio": {"all": 1.01},
        "num_unreliable": 0,
    }
    (tmp_path / "lda.trained.json").write_text(json.dumps(made))
    read = stages.run(ENTRIES["lda"], "trained", stages.Settings(), tmp_path, lambda text: None)
    assert read == made
    report.write(tmp_path / "page.md", [read], [], [], 2)
    assert "| lda | trained | 0.899 | **0.400** | 1.010 |" in (tmp_path / "page.md").read_text()


def test_the_table_of_the_papers_models_marks_what_misses():
    settings = {"num_instances": 500, "num_points": 100, "num_sweeps": 19, "num_particles": 10}
    log_joint = {"built": -443.5, "by hand": -442.3}
    mixture = {"name": "mixture", "settings": settings, "log_joint": log_joint, "ahead": -1.2, "ahead_se": 0.1}
    page = report.markdown([], [], [{**mixture, "sweep_ratio": 3.2}], 2)
    assert "| mixture | 500 of 100 points | 20 × 10 | -443.5 | -442.3 | **-1.20 ± 0.10** | **3.2 ×** |" in page
    deep = {**mixture, "name": "deep_mixture", "log_joint": {"built": -201.0, "by hand": 200.0}, "sweep_ratio": None}
    assert "| **-201.0** | 200.0 | -1.20 ± 0.10 |  |" in report.markdown([], [], [deep], 2)
