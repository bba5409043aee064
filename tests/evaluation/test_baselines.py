"""Baselines: other samplers of the same model, and their comparison."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import popgibbs as pg
from models import vague_labels, vague_means
from oracles import assert_mean, chain, pair, pair_posterior
from popgibbs.evaluation import matched

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
X = np.array([-1.0, 0.4, 2.2], np.float32)
INSTANCES = [{"x": X}, {"x": X + 1}, {"x": -X}]


@pytest.fixture(scope="module")
def mixture(quick_compilation) -> pg.APG:
    blocks = [
        pg.Block("mu", proposal=vague_means, assigned_by="c"),
        pg.Block("c", proposal=vague_labels, move=pg.Metropolis()),
    ]
    return pg.APG(pair, data={"x": "points"}, blocks=blocks, example={"x": X})


# Bootstrapped population Gibbs ------------------------------------------------------------------------------------------


def test_the_prior_replaces_proposals_and_moves_stay(mixture):
    everywhere, somewhere = pg.with_prior_proposals(mixture), pg.with_prior_proposals(mixture, "mu")
    assert [type(block.kernel).__name__ for block in everywhere.blocks] == ["Prior", "Prior"]
    assert [type(block.kernel).__name__ for block in somewhere.blocks] == ["Prior", "Programmed"]
    assert [type(block.move).__name__ for block in everywhere.blocks] == ["Reweight", "Metropolis"]


def test_a_bootstrapped_sampler_estimates_the_evidence_without_bias(mixture):
    posterior = pg.with_prior_proposals(mixture).sample(
        KEY, [{"x": X}], num_sweeps=1, num_particles=8, num_populations=4000
    )
    ratios = np.exp(posterior.log_evidence_by_sweep[0] - pair_posterior(X).log_evidence)
    assert_mean(ratios, np.ones(2))


def test_a_block_that_does_not_exist_is_named(mixture):
    with pytest.raises(ValueError, match="there is no block 'tau'; there are mu, c"):
        pg.with_prior_proposals(mixture, "tau")


def first_child(data, latents, model):
    numpyro.sample("b", dist.Normal(0.0, 1.0))


def test_blocks_need_not_be_in_the_order_of_the_model():
    """With its blocks reversed, a chain cannot draw them from the prior one after the other."""
    blocks = [pg.Block("b", proposal=first_child), pg.Block("a", proposal=pg.Prior())]
    turned = pg.APG(chain, data={"x": "points"}, blocks=blocks)
    assert np.isfinite(
        pg.with_prior_proposals(turned).sample(KEY, INSTANCES, num_sweeps=1, num_particles=4).log_evidence
    ).all()


def test_other_blocks_start_as_before(mixture):
    started = mixture.with_blocks(mixture.blocks[::-1], initial=pg.with_prior_proposals(mixture))
    theirs = started.sample(KEY, INSTANCES, num_sweeps=0, num_particles=4)
    ours = pg.with_prior_proposals(started, "mu").sample(KEY, INSTANCES, num_sweeps=0, num_particles=4)
    np.testing.assert_allclose(ours.mean_log_joint, theirs.mean_log_joint, rtol=1e-5)


# HMC --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("summed", [True, False], ids=["labels summed out", "labels given"])
def test_hmc_starts_from_the_samples_of_the_other_sampler(mixture, summed):
    moved = pg.hmc_rws(mixture, step_size=0.5, num_steps=3, sum_out_finite=summed)
    assert [block.name for block in moved.blocks] == (["mu,c"] if summed else ["mu", "c"])
    theirs = mixture.sample(KEY, INSTANCES, num_sweeps=0, num_particles=4)
    ours = moved.sample(KEY, INSTANCES, num_sweeps=2, num_particles=4)
    np.testing.assert_allclose(ours.mean_log_joint[:, :, 0], theirs.mean_log_joint[:, :, 0], rtol=1e-5)
    assert np.all(ours.acceptance[:, :, 1:, 0] > 0)


def test_a_tuned_step_size_reaches_the_requested_acceptance(mixture):
    moved = pg.tune_step_size(pg.hmc_rws(mixture, step_size=1.0, num_steps=3), KEY, INSTANCES, acceptance=0.7)
    posterior = moved.sample(jax.random.key(1), INSTANCES, num_sweeps=20, num_particles=20)
    assert abs(posterior.acceptance[:, :, 5:, 0].mean() - 0.7) < 0.1


def endless(x):
    n = numpyro.sample("n", dist.Poisson(3.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(n, 1.0), obs=x)


def test_hmc_names_the_sites_that_it_cannot_move():
    apg = pg.APG(endless, data={"x": "points"}, blocks=[pg.Block("n", proposal=pg.Prior())], example={"x": X})
    with pytest.raises(ValueError, match=r"discrete sites to be finite; \['n'\] are not"):
        pg.hmc_rws(apg, step_size=1.0, num_steps=1)


def test_first_draws_of_another_model_are_refused(mixture):
    other = pg.APG(chain, data={"x": "points"}, blocks=[pg.Block("a", "b", proposal=pg.Prior())], example={"x": X})
    with pytest.raises(ValueError, match=r"`initial=` draws the sites \['a', 'b'\], but the model has \['c', 'mu'\]"):
        mixture.with_blocks(mixture.blocks, initial=other).check({"x": X})


# The comparison ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparison(mixture) -> pg.Comparison:
    return pg.compare(KEY, mixture, INSTANCES, leapfrog=(), num_sweeps=2, num_particles=4, progress=False)


def test_budgets_match_as_in_the_paper(mixture):
    others = {"rws": mixture, "bpg": mixture, "moved": {1: mixture, 5: mixture}, "gibbs": mixture}
    methods = matched(mixture, **others, num_sweeps=3, num_particles=4)
    nothing = {label: np.zeros((2, 1)) for label in methods}
    rates, failed = dict.fromkeys(methods, 1.0), dict.fromkeys(methods, 0)
    table = pg.Comparison(methods=methods, log_joint=nothing, acceptance=rates, failed=failed).table
    hmc = ["HMC-RWS, LF=1", "HMC-RWS, LF=5"]
    assert list(table.index) == ["APG", "RWS", "BPG", *hmc, "Gibbs", "Gibbs, resampled start"]
    assert table["K"].tolist() == [4, 1, 4, 4, 4, 4, 4]
    assert table["L"].tolist() == [4, 16, 4, 4, 4, 4, 4]
    assert table["evaluations"].tolist() == [16, 16, 16, 16, 80, 16, 16]
    assert (methods["Gibbs"].num_particles, methods["Gibbs"].num_populations) == (1, 4)


def test_differences_are_paired_with_the_first_method(comparison):
    table, log_joint = comparison.table, comparison.log_joint
    assert [log_joint[label].shape for label in ("APG", "RWS", "BPG")] == [(3, 3), (3, 1), (3, 3)]
    assert table.loc["APG", "ahead"] == 0
    difference = log_joint["BPG"][:, -1] - log_joint["APG"][:, -1]
    assert table.loc["BPG", "ahead"] == pytest.approx(difference.mean())
    assert table.loc["BPG", "ahead_se"] == pytest.approx(difference.std(ddof=1) / 3**0.5)


def test_bpg_may_have_more_particles_and_the_prior_for_some_blocks_only(mixture):
    budget = {"num_sweeps": 1, "num_particles": 4, "leapfrog": (), "progress": False}
    comparison = pg.compare(KEY, mixture, INSTANCES, bpg_blocks=("mu",), bpg_particle_factor=3, **budget)
    bpg = comparison.methods["BPG"]
    assert (bpg.num_particles, comparison.table.loc["BPG", "evaluations"]) == (12, 24)
    assert [type(block.kernel).__name__ for block in bpg.sampler.blocks] == ["Prior", "Programmed"]


def impossible(x):
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Uniform(z, z + 0.1), obs=x)


def test_a_method_whose_weights_fail_is_not_ahead():
    apg = pg.APG(impossible, data={"x": "points"}, blocks=[pg.Block("z", proposal=pg.Prior())], example={"x": X})
    with pytest.warns(UserWarning, match="weights failed on 3 of 3 instances"):
        table = pg.compare(KEY, apg, INSTANCES, leapfrog=(), num_sweeps=1, num_particles=4, progress=False).table
    assert table["failed"].tolist() == [3, 3, 3]
    assert (table["log_joint"] == -np.inf).all()


def test_every_method_is_drawn(comparison):
    (axes,) = comparison.plot().axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(comparison.methods)
