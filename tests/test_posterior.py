"""Posteriors against NumPy: samples without padding in the user's order, evidence, summaries, ArviZ."""

from pathlib import Path
from typing import Any

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp

import popgibbs as pg
from models import AXES, located_sampler
from oracles import assert_mean
from popgibbs.data import Bucket, Data
from popgibbs.model import Particle, Partition, inspect
from popgibbs.posterior import Part
from popgibbs.running import Runner
from popgibbs.smc import BuiltSampler, Info, Plan, Population

pytestmark = pytest.mark.usefixtures("quick_compilation")

SIZES = (2, 3, 1, 3)  # the first and the third share a bucket of size 2
NUM_SWEEPS, NUM_POPULATIONS, NUM_PARTICLES = 2, 3, 8


def model(x: jax.Array) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(a, 1.0).expand([2]).to_event(1))
        c = numpyro.sample("c", dist.Bernoulli(0.5))
        numpyro.sample("x", dist.Normal(z[..., 0] + c, 1.0), obs=x)


class Numbers:
    """Random results for every instance, in the form that a run returns."""

    def __init__(self, num_populations: int = NUM_POPULATIONS, num_particles: int = NUM_PARTICLES) -> None:
        generator = np.random.default_rng(0)
        self.shape = (num_populations, num_particles)
        particles, sweeps = (len(SIZES), *self.shape), (len(SIZES), num_populations, NUM_SWEEPS + 1)
        self.a = generator.normal(size=particles).astype(np.float32)
        self.z = [generator.normal(size=(*self.shape, size, 2)).astype(np.float32) for size in SIZES]
        self.c = [generator.integers(0, 2, (*self.shape, size), np.int32) for size in SIZES]
        self.log_weights = generator.normal(size=particles).astype(np.float32)
        self.log_probs = generator.normal(size=(*particles, 2)).astype(np.float32)
        self.degenerate = np.zeros((len(SIZES), num_populations), bool)
        self.mean_log_joint = generator.normal(size=sweeps).astype(np.float32)
        self.log_evidence = generator.normal(size=sweeps).astype(np.float32)
        self.ess = generator.uniform(3, 8, size=(*sweeps, 2)).astype(np.float32)
        self.acceptance = generator.uniform(size=(*sweeps, 2)).astype(np.float32)
        self.impossible = np.zeros((*sweeps, 2), bool)
        self.stale = np.zeros((*sweeps, 4), np.float32)
        self.finite = np.ones((*sweeps, 4), bool)
        self.num_ancestors = generator.integers(1, 8, sweeps, np.int32)

    def posterior(self) -> pg.Posterior:
        blocks = (pg.Block("a", proposal=pg.Prior()), pg.Block("z", "c", proposal=pg.Prior()))
        sites = inspect(model, {"x": np.zeros(3, np.float32)})
        plans = (Plan(Partition(sites), Partition(sites), summed=None, proved=True),) * 2
        sampler = BuiltSampler(model, blocks, None, sites, plans, pg.systematic, 1.0)
        runner = Runner(sampler=sampler, num_populations=self.shape[0], num_particles=self.shape[1], batch_size=100)
        return pg.Posterior(runner, [self.part([1, 3], 3), self.part([2, 0], 2)])

    def part(self, members: list[int], size: int) -> Part:
        mask = np.stack([np.arange(size) < SIZES[i] for i in members])
        latents = {
            "a": self.a[members],
            "z": np.stack([lengthened(self.z[i], size) for i in members]),
            "c": np.stack([lengthened(self.c[i], size) for i in members]),
        }
        log_probs = {"a": self.log_probs[members][..., 0], "x": self.log_probs[members][..., 1:]}
        population = Population(
            particles=Particle(jax.device_put(latents), jax.device_put(log_probs)),
            log_weights=jnp.asarray(self.log_weights[members]),
            log_evidence=jnp.zeros((2, self.shape[0])),
            ancestors=jnp.broadcast_to(jnp.arange(self.shape[1]), (2, *self.shape)),
            degenerate=jnp.asarray(self.degenerate[members]),
        )
        by_sweep = [np.moveaxis(getattr(self, name)[members], 2, 0) for name in Info._fields]
        data = Data({"x": jnp.zeros((2, size))}, {"points": mask})
        return Part(Bucket(data, np.array(members)), jax.device_get(population), Info(*by_sweep))


def lengthened(array: np.ndarray, size: int) -> np.ndarray:
    """An array whose axis of points, the third, is padded to a size."""
    return np.pad(array, [(0, size - array.shape[2] if axis == 2 else 0) for axis in range(array.ndim)])


@pytest.fixture
def numbers() -> Numbers:
    return Numbers()


# Samples and numbers ----------------------------------------------------------------------------------------------------


def test_instances_come_back_in_the_order_they_were_given_without_padding(numbers: Numbers) -> None:
    posterior = numbers.posterior()
    assert len(posterior) == len(list(posterior)) == 4
    for i in range(-4, 4):
        samples = posterior[i]
        assert list(samples) == ["a", "z", "c"]
        np.testing.assert_array_equal(samples["a"], numbers.a[i])
        np.testing.assert_array_equal(samples["z"], numbers.z[i])
        np.testing.assert_array_equal(samples["c"], numbers.c[i])
    with pytest.raises(IndexError, match="instance 4 of 4"):
        posterior[4]


def test_numbers_have_axes_instance_population_sweep_block(numbers: Numbers) -> None:
    posterior = numbers.posterior()
    for name in ("mean_log_joint", "ess", "acceptance", "num_ancestors"):
        np.testing.assert_array_equal(getattr(posterior, name), getattr(numbers, name))
    np.testing.assert_array_equal(posterior.log_evidence_by_sweep, numbers.log_evidence)
    np.testing.assert_allclose(posterior.log_joint, numbers.log_probs.sum(axis=-1))
    assert (posterior.num_sweeps, posterior.num_populations, posterior.num_particles) == (2, 3, 8)
    assert posterior.blocks == ["a", "z,c"]
    assert posterior.padding == pytest.approx(10 / sum(SIZES) - 1)
    assert repr(posterior) == (
        "Posterior(4 instances × 3 populations × 8 particles, 2 sweeps, blocks [a] [z,c], padded by 11%)"
    )


def test_weights_sum_to_one_in_each_population(numbers: Numbers) -> None:
    weights = numbers.posterior().weights
    expected = np.exp(numbers.log_weights - logsumexp(numbers.log_weights, axis=-1, keepdims=True))
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-5)


def test_evidence_is_averaged_over_populations_and_its_error_is_their_spread(numbers: Numbers) -> None:
    posterior = numbers.posterior()
    evidence = np.exp(numbers.log_evidence[..., -1])
    np.testing.assert_allclose(posterior.log_evidence, np.log(evidence.mean(axis=1)), rtol=1e-5)
    relative = evidence.std(axis=1, ddof=1) / np.sqrt(NUM_POPULATIONS) / evidence.mean(axis=1)
    np.testing.assert_allclose(posterior.log_evidence_error, relative, rtol=1e-5)


def test_single_population_has_no_evidence_error() -> None:
    assert np.isnan(Numbers(num_populations=1).posterior().log_evidence_error).all()


def test_degenerate_flag_of_any_population_marks_the_instance(numbers: Numbers) -> None:
    numbers.degenerate[2, 1] = True
    assert numbers.posterior().degenerate.tolist() == [False, False, True, False]


def test_weak_blocks_are_those_of_low_ess_in_the_last_sweep(numbers: Numbers) -> None:
    numbers.ess[..., :-1, :] = 0.1
    numbers.ess[..., -1, 0] = 0.3 * NUM_PARTICLES + 0.1
    numbers.ess[..., -1, 1] = 0.25 * NUM_PARTICLES
    assert numbers.posterior().weak_blocks == ["z,c (25%)"]


# Resampling and summaries -----------------------------------------------------------------------------------------------


def test_resampled_posterior_has_equal_weights_and_copies_in_proportion(numbers: Numbers) -> None:
    posterior = numbers.posterior()
    equal = posterior.resampled(jax.random.key(0))
    np.testing.assert_allclose(equal.weights, 1 / NUM_PARTICLES, rtol=1e-6)
    np.testing.assert_array_equal(equal.log_evidence, posterior.log_evidence)
    expected = NUM_PARTICLES * posterior.weights
    for i in range(4):
        copies = (equal[i]["a"][:, None, :] == numbers.a[i][:, :, None]).sum(axis=-1)
        assert np.all(copies.sum(axis=-1) == NUM_PARTICLES)
        assert np.all(np.abs(copies - expected[i]) < 1)
    again = equal.resampled(jax.random.key(1))
    np.testing.assert_array_equal(np.sort(again[1]["a"]), np.sort(equal[1]["a"]))


def test_the_first_particle_of_a_resampled_population_is_drawn_in_proportion_to_the_weights() -> None:
    numbers = Numbers(num_populations=2000)
    numbers.a[:], numbers.log_weights[:] = np.arange(NUM_PARTICLES), numbers.log_weights[0, 0]
    posterior = numbers.posterior()
    drawn = posterior.resampled(jax.random.key(0))[0]["a"][:, 0]
    assert_mean(drawn[:, None] == np.arange(NUM_PARTICLES), posterior.weights[0, 0])


def test_summary_has_weighted_moments_and_modes(numbers: Numbers) -> None:
    posterior = numbers.posterior()
    table = posterior.summary()
    weights = posterior.weights.reshape(4, -1) / NUM_POPULATIONS
    assert [len(table.loc[i]) for i in range(4)] == [1 + 3 * size for size in SIZES]
    for i, size in enumerate(SIZES):
        columns = {"a": numbers.a[i]}
        columns |= {f"z[{n}, {d}]": numbers.z[i][..., n, d] for n in range(size) for d in range(2)}
        for site, values in columns.items():
            row, flat = table.loc[(i, site)], values.reshape(-1)
            mean = np.average(flat, weights=weights[i])
            np.testing.assert_allclose(row["mean"], mean, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(row["sd"] ** 2, np.average((flat - mean) ** 2, weights=weights[i]), rtol=1e-4)
            # Interpolation moves a weighted quantile by at most one order statistic.
            ordered = np.sort(flat)
            for name, level in (("q5", 0.05), ("median", 0.5), ("q95", 0.95)):
                step = np.quantile(flat, level, method="inverted_cdf", weights=weights[i])
                place = np.searchsorted(ordered, step)
                assert ordered[max(place - 1, 0)] <= row[name] <= ordered[min(place + 1, len(ordered) - 1)]
        for n in range(size):
            share = np.average(numbers.c[i][..., n].reshape(-1), weights=weights[i])
            row = table.loc[(i, f"c[{n}]")]
            assert row["mode"] == round(share)
            np.testing.assert_allclose(row["probability"], max(share, 1 - share), rtol=1e-4)


def test_summary_of_equal_weights_has_numpy_quantiles(numbers: Numbers) -> None:
    numbers.log_weights[:] = 0.0
    table = numbers.posterior().summary(3)
    assert set(table.index.get_level_values("instance")) == {3}
    expected = np.quantile(numbers.a[3], [0.05, 0.5, 0.95], method="hazen")
    np.testing.assert_allclose(table.loc[(3, "a"), ["q5", "median", "q95"]].to_numpy(float), expected, rtol=1e-5)


def test_summary_ignores_a_population_without_weight(numbers: Numbers) -> None:
    numbers.log_weights[1, 0] = -np.inf
    row = numbers.posterior().summary(1).loc[(1, "a")]
    weights = np.exp(numbers.log_weights[1, 1:] - logsumexp(numbers.log_weights[1, 1:], axis=-1, keepdims=True))
    np.testing.assert_allclose(row["mean"], np.average(numbers.a[1, 1:], weights=weights), rtol=1e-4)


@pytest.mark.parametrize("use", ["log_evidence_error", "summary", "to_arviz"])
def test_a_failed_instance_does_not_prevent_reading_the_others(numbers: Numbers, use: str) -> None:
    numbers.log_weights[2] = numbers.log_evidence[2] = -np.inf
    numbers.degenerate[2] = True
    posterior = numbers.posterior()
    if use == "log_evidence_error":
        assert np.isfinite(np.delete(posterior.log_evidence_error, 2)).all()
    elif use == "summary":
        assert np.isfinite(posterior.summary().drop(2, level="instance").xs("a", level="site")["mean"]).all()
    else:
        assert posterior.to_arviz().constant_data["degenerate"].values.tolist() == [False, False, True, False]


# ArviZ ------------------------------------------------------------------------------------------------------------------


def test_arviz_has_populations_as_chains_and_particles_as_draws(numbers: Numbers, tmp_path: Path) -> None:
    posterior = numbers.posterior()
    found: Any = posterior.to_arviz(jax.random.key(0))
    assert dict(found.posterior.sizes) == {"chain": 3, "draw": 8, "instance": 4, "z_dim_0": 3, "z_dim_1": 2, "c_dim_0": 3}
    assert found.posterior["a"].dims == ("chain", "draw", "instance")
    assert found.posterior["z"].dims == ("chain", "draw", "instance", "z_dim_0", "z_dim_1")
    assert found.sample_stats["lp"].dims == ("chain", "draw", "instance")
    equal = posterior.resampled(jax.random.key(0))
    for i, size in enumerate(SIZES):
        z, c = found.posterior["z"].sel(instance=i).to_numpy(), found.posterior["c"].sel(instance=i).to_numpy()
        np.testing.assert_array_equal(z[:, :, :size], equal[i]["z"])
        np.testing.assert_array_equal(c[:, :, :size], equal[i]["c"])
        assert np.all(np.isnan(z[:, :, size:]))
        assert np.all(c[:, :, size:] == -1)
    np.testing.assert_allclose(found.sample_stats["lp"].to_numpy(), np.moveaxis(equal.log_joint, 0, 2))
    np.testing.assert_array_equal(found.constant_data["size_points"], SIZES)
    np.testing.assert_allclose(found.constant_data["log_evidence"], posterior.log_evidence)
    found.to_netcdf(str(tmp_path / "posterior.nc"))
    read: Any = az.from_netcdf(str(tmp_path / "posterior.nc"))
    assert read.posterior.equals(found.posterior)
    assert read.constant_data.equals(found.constant_data)
    assert read.sample_stats.equals(found.sample_stats)


def test_arviz_takes_more_populations_than_particles() -> None:
    assert Numbers(num_populations=3, num_particles=2).posterior().to_arviz().posterior.sizes["chain"] == 3


# Real runs --------------------------------------------------------------------------------------------------------------


def test_an_extended_run_continues_the_first_up_to_rounding() -> None:
    apg, key, instances = located_sampler(), jax.random.key(1), {"x": np.array([[0.3, 1.0], [-2.0, 0.1]])}
    budget = {"num_particles": 3, "num_populations": 2}
    short = apg.sample(key, instances, num_sweeps=1, **budget)
    whole = apg.sample(key, instances, num_sweeps=3, **budget)
    extended = short.extend(key, 2)
    assert (short.num_sweeps, extended.num_sweeps) == (1, 3)
    for name in ("log_evidence_by_sweep", "ess", "weights", "mean_log_joint", "num_ancestors"):
        np.testing.assert_allclose(getattr(extended, name), getattr(whole, name), rtol=1e-5, atol=1e-6)
    for i in range(2):
        np.testing.assert_allclose(extended[i]["mu"], whole[i]["mu"], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="num_sweeps=0 must be at least 1"):
        short.extend(key, 0)


def impossible(x: jax.Array) -> None:
    """Data above 5 have density zero for every value of the latent."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(a, 1.0), obs=x)
        numpyro.factor("bound", jnp.where(x > 5, -np.inf, 0.0))


def test_instance_whose_weights_all_fail_is_flagged_and_keeps_its_particles() -> None:
    apg = pg.APG(impossible, data=AXES, blocks=[pg.Block("a", proposal=pg.Prior())])
    instances = [np.array([0.5, 1.0]), np.array([0.5, 9.0])]
    with pytest.warns(UserWarning, match=r"weights failed on 1 of 2 instances.*at instance 1 no first draw.*'bound'"):
        posterior = apg.sample(jax.random.key(0), instances, num_sweeps=1, num_particles=4, num_populations=2)
    assert posterior.degenerate.tolist() == [False, True]
    assert np.all(np.isfinite(posterior[1]["a"]))
    assert np.isfinite(posterior.log_evidence[0])
    assert posterior.log_evidence[1] == -np.inf
    np.testing.assert_allclose(posterior.resampled(jax.random.key(0)).weights, 0.25)
