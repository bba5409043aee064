"""The whole algorithm: uniform weights under exact conditionals, keys by index, flagged failures."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import logsumexp

import popgibbs as pg
from oracles import chain, chain_log_evidence, given_a, given_b, given_x
from popgibbs.data import complete
from popgibbs.paper.gmm.data import simulate
from popgibbs.paper.gmm.model import mixture
from popgibbs.paper.gmm.proposals import ExactGlobals, Seeded
from popgibbs.smc import initial_plan, run

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(7)
X = [{"x": np.array(x, np.float32)} for x in ([0.4, 1.3], [-2.0, 0.1], [1.0, 1.0])]


def exact_a(data, latents, model):
    numpyro.sample("a", dist.Normal(*(given_b(latents["b"]) if "b" in latents else given_x(data))))


def exact_b(data, latents, model):
    numpyro.sample("b", dist.Normal(*given_a(latents["a"], data)))


def near_a(data, latents, model):
    loc, scale = given_b(latents["b"]) if "b" in latents else given_x(data)
    numpyro.sample("a", dist.Normal(loc + 0.3, 1.2 * scale))


def near_b(data, latents, model):
    loc, scale = given_a(latents["a"], data)
    numpyro.sample("b", dist.Normal(loc - 0.2, 0.9 * scale))


@cache
def near() -> pg.APG:
    blocks = [pg.Block("a", proposal=near_a), pg.Block("b", proposal=near_b, move=pg.Metropolis())]
    return pg.APG(chain, data={"x": "points"}, blocks=blocks)


@cache
def sampled() -> pg.Posterior:
    return near().sample(KEY, X, num_sweeps=3, num_particles=6)


def assert_same(first: pg.Posterior, second: pg.Posterior, *, rtol: float = 0.0) -> None:
    assert len(first) == len(second)
    for i in range(len(first)):
        for name, values in first[i].items():
            np.testing.assert_allclose(values, second[i][name], rtol=rtol, atol=rtol)
    for name in ("weights", "log_joint", "mean_log_joint", "log_evidence_by_sweep", "ess", "acceptance", "num_ancestors"):
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), rtol=rtol, atol=rtol)


# Exact conditionals ----------------------------------------------------------------------------------------------------


def test_exact_conditionals_keep_weights_uniform_and_the_evidence_exact():
    """The first draw is exact too, so every weight is p(x)."""
    blocks = [pg.Block("a", proposal=exact_a), pg.Block("b", proposal=exact_b)]
    apg = pg.APG(chain, data={"x": "points"}, blocks=blocks)
    posterior = apg.sample(KEY, X, num_sweeps=2, num_particles=7)
    np.testing.assert_allclose(posterior.ess, 7.0, rtol=1e-5)
    exact = [chain_log_evidence(instance["x"]) for instance in X]
    np.testing.assert_allclose(posterior.log_evidence, exact, rtol=1e-5)
    assert np.all(posterior.num_ancestors == 7)


@cache
def exact_mixture() -> pg.APG:
    blocks = [
        pg.Block("tau", "mu", proposal=ExactGlobals(Seeded(num_rounds=1)), assigned_by="c"),
        pg.Block("c", proposal=pg.Enumerated()),
    ]
    return pg.APG(mixture, data={"x": "points"}, blocks=blocks)


@cache
def of_mixtures() -> pg.Posterior:
    """Two simulated instances, and one whose points coincide."""
    instances = [np.asarray(simulate(jax.random.key(i), 8)[0]["x"]) for i in range(2)]
    return exact_mixture().sample(KEY, [*instances, np.full((8, 2), 2.5)], num_sweeps=3, num_particles=5)


def test_exact_conditionals_of_the_mixture_keep_weights_uniform():
    ess = of_mixtures().ess
    assert np.any(ess[:, :, 0] < 2.5)
    np.testing.assert_allclose(ess[:, :, 1:], 5.0, rtol=1e-4)
    # Uniform increments do not change the evidence of the first draw.
    np.testing.assert_allclose(np.diff(of_mixtures().log_evidence_by_sweep, axis=-1), 0.0, atol=1e-2)


# Keys ------------------------------------------------------------------------------------------------------------------


def test_extending_with_the_same_key_continues_a_run_exactly():
    begun = near().sample(KEY, X, num_sweeps=1, num_particles=6)
    continued = begun.extend(KEY, 2)
    assert continued.num_sweeps == 3
    assert_same(continued, sampled(), rtol=1e-6)


def test_results_do_not_depend_on_the_batch_size():
    """This includes batches of one instance, a padded last batch, and a continued run."""
    single = near().sample(KEY, X, num_sweeps=3, num_particles=6, batch_size=1)
    assert_same(single, sampled(), rtol=1e-5)
    filled = near().sample(KEY, X, num_sweeps=1, num_particles=6, batch_size=2).extend(KEY, 2)
    assert_same(filled, sampled(), rtol=1e-5)


def test_an_instance_depends_only_on_its_own_data_and_index():
    changed = near().sample(KEY, [X[2], X[1], X[1]], num_sweeps=3, num_particles=6)
    np.testing.assert_array_equal(changed[1]["a"], sampled()[1]["a"])
    assert not np.any(changed[2]["a"] == sampled()[1]["a"])
    alone = near().sample(KEY, X[:1], num_sweeps=3, num_particles=6, batch_size=1)
    np.testing.assert_allclose(alone[0]["b"], sampled()[0]["b"], rtol=1e-5)


def test_a_population_does_not_depend_on_the_number_of_populations():
    several = near().sample(KEY, X, num_sweeps=3, num_particles=6, num_populations=2)
    for i in range(len(X)):
        np.testing.assert_allclose(several[i]["a"][:1], sampled()[i]["a"], rtol=1e-5)
        assert not np.any(several[i]["a"][0] == several[i]["a"][1])
    np.testing.assert_allclose(several.log_evidence_by_sweep[:, :1], sampled().log_evidence_by_sweep, rtol=1e-5)


def test_a_different_key_gives_different_draws():
    other = near().sample(jax.random.key(8), X, num_sweeps=3, num_particles=6)
    assert not np.any(other[0]["a"] == sampled()[0]["a"])


# Steps -----------------------------------------------------------------------------------------------------------------


def test_without_sweeps_the_weights_are_those_of_importance_sampling():
    posterior = near().sample(KEY, X[:1], num_sweeps=0, num_particles=6, batch_size=1)
    x, a, b = X[0]["x"].astype(np.float64), posterior[0]["a"][0], posterior[0]["b"][0]
    log_p = stats.norm(0, 1).logpdf(a) + stats.norm(a, 1).logpdf(b) + stats.norm(b[:, None], 1).logpdf(x).sum(axis=-1)
    data = complete(X[0], near().axes)
    (loc_a, scale_a), (loc_b, scale_b) = jax.device_get((given_x(data), given_a(a, data)))
    log_q = stats.norm(loc_a + 0.3, 1.2 * scale_a).logpdf(a) + stats.norm(loc_b - 0.2, 0.9 * scale_b).logpdf(b)
    log_w = log_p - log_q
    np.testing.assert_allclose(posterior.log_joint[0, 0], log_p, rtol=1e-5)
    np.testing.assert_allclose(posterior.weights[0, 0], np.exp(log_w - logsumexp(log_w)), rtol=1e-4)
    np.testing.assert_allclose(posterior.log_evidence, [logsumexp(log_w) - np.log(6)], rtol=1e-5)
    assert posterior.log_evidence_by_sweep.shape == (1, 1, 1)


def test_the_first_block_that_contains_a_site_draws_it_first():
    blocks = (
        pg.Block("b", "c", proposal=exact_b),
        pg.Block("c", "a", "b", proposal=exact_b),
        pg.Block("a", proposal=exact_a),
    )
    assert initial_plan(blocks) == [(0, ("b", "c")), (1, ("a",))]


def test_an_observer_sees_the_initial_step_and_every_block_of_every_sweep_with_different_keys():
    sampler = near().check(X[0])
    batch = jax.tree.map(lambda leaf: leaf[None], complete(X[0], near().axes))

    def observe(carry, sampler, data, event):
        index = event.block
        assert event.log_v.shape == ((1, 6) if index is None else (1, 6, 1))
        assert set(event.latents) == {"a", "b"}
        if index is not None:
            assert set(event.proposed) == set(sampler.blocks[index].sites)
        order, keys, step = carry
        order = order.at[step].set(-1 if index is None else index)
        return order, keys.at[step].set(jax.random.key_data(event.keys[0])), step + 1

    @jax.jit
    def observed(keys):
        carry = jnp.zeros(9, int), jnp.zeros((9, 6, 2), jnp.uint32), 0
        return run(sampler, keys, batch, num_sweeps=4, num_particles=6, observe=observe, carry=carry)

    _, info, (order, keys, step) = observed(jax.random.split(KEY, 1))
    assert step == 9
    np.testing.assert_array_equal(order, [-1, 0, 1, 0, 1, 0, 1, 0, 1])
    assert len(np.unique(np.asarray(keys).reshape(-1, 2), axis=0)) == 9 * 6
    assert info.ess.shape == (5, 1, 1, 2)


# Degenerate cases ------------------------------------------------------------------------------------------------------


def assert_finite(posterior: pg.Posterior) -> None:
    for i in range(len(posterior)):
        assert all(np.all(np.isfinite(values)) for values in posterior[i].values())
    for name in ("weights", "mean_log_joint", "log_joint", "log_evidence", "ess"):
        assert np.all(np.isfinite(getattr(posterior, name)))
    assert not np.any(posterior.degenerate)


def test_results_for_one_particle_and_one_point_with_two_empty_clusters_are_finite():
    posterior = exact_mixture().sample(KEY, [{"x": np.array([[3.0, -1.0]])}], num_sweeps=3, num_particles=1)
    assert_finite(posterior)
    np.testing.assert_allclose(posterior.weights, 1.0)
    np.testing.assert_allclose(posterior.ess, 1.0)


def test_results_for_coinciding_points_are_finite():
    assert_finite(of_mixtures())


def cliff(x, low, high):
    """A density of zero below `low` and NaN above `high`."""
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    numpyro.factor("cliff", jnp.where(z > low, jnp.where(z > high, jnp.nan, 0.0), -jnp.inf))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


@cache
def on_the_cliff() -> pg.Posterior:
    """Four instances: a valid one, and ones where no particle is in the support, all failed, or some failed."""
    apg = pg.APG(cliff, data={"x": "points"}, blocks=[pg.Block("z", proposal=pg.Prior(), move=pg.Metropolis())])
    ends = [(-9.0, 9.0), (9.0, 99.0), (-9.0, -8.0), (-9.0, 0.0)]
    instances = [{"x": X[0]["x"], "low": np.float32(low), "high": np.float32(high)} for low, high in ends]
    with pytest.warns(UserWarning, match=r"weights failed on 3 of 4 instances.*at instance 1 no first draw.*'cliff'"):
        return apg.sample(KEY, instances, num_sweeps=2, num_particles=20)


def test_instances_whose_weights_fail_are_flagged_and_others_are_not():
    np.testing.assert_array_equal(on_the_cliff().degenerate, [False, True, True, True])


def test_a_population_without_weight_keeps_evidence_zero_and_finite_particles():
    evidence = on_the_cliff().log_evidence_by_sweep
    assert np.all(np.isneginf(evidence[1:3]))
    assert np.all(np.isfinite(evidence[[0, 3]]))
    assert all(np.all(np.isfinite(on_the_cliff()[i]["z"])) for i in range(4))
    assert not np.any(np.isnan(on_the_cliff().weights))
    assert not np.any(np.isnan(on_the_cliff().ess))


def test_failed_particles_do_not_survive_resampling():
    assert np.all(on_the_cliff()[3]["z"] <= 0.0)
