"""Weights: zero stays zero, NaN never spreads, and failures are flagged."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from popgibbs.model import Particle
from popgibbs.moves import log_ratio
from popgibbs.smc import (
    Population,
    degenerate,
    ess,
    log_mean_exp,
    multinomial,
    normalise,
    proper,
    residual,
    stratified,
    systematic,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

INF, NAN = np.inf, np.nan


def population(log_weights: list[float]) -> Population:
    """Particles whose only latent is their index."""
    size = len(log_weights)
    return Population(
        particles=Particle({"z": jnp.arange(size)}, {"z": jnp.zeros(size)}),
        log_weights=jnp.array(log_weights),
        log_evidence=jnp.asarray(0.5),
        ancestors=jnp.arange(size),
        degenerate=jnp.asarray(False),
    )


@pytest.mark.parametrize("offset", [0.0, -1e4, 1e4, 80.0])
def test_normalised_weights_and_their_statistics_agree_with_float64_at_any_offset(offset):
    log_weights = np.array([0.0, -1.0, 2.0, -INF, 0.5])
    weights = np.exp(log_weights) / np.exp(log_weights).sum()
    shifted = jnp.array(log_weights + offset)
    rounding = 1e-6 * max(1.0, abs(offset))
    np.testing.assert_allclose(normalise(shifted), weights, rtol=10 * rounding)
    np.testing.assert_allclose(ess(shifted), 1 / np.sum(weights**2), rtol=10 * rounding)
    np.testing.assert_allclose(log_mean_exp(shifted), np.log(np.mean(np.exp(log_weights))) + offset, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 3, 10, 1000])
def test_equal_weights_have_full_effective_size_and_one_weight_has_one(size):
    np.testing.assert_allclose(ess(jnp.full(size, -7.0)), size, rtol=1e-5)
    np.testing.assert_allclose(ess(jnp.full(size, -INF).at[0].set(-7.0)), 1.0, rtol=1e-6)


def test_no_weight_at_all_gives_zeros_and_never_nan():
    none = jnp.full(3, -INF)
    np.testing.assert_array_equal(normalise(none), np.zeros(3))
    assert ess(none) == 0
    assert log_mean_exp(none) == -INF


def test_numbers_that_no_density_produces_count_as_weight_zero():
    np.testing.assert_array_equal(proper(jnp.array([1.0, NAN, INF, -INF])), [1.0, -INF, -INF, -INF])
    np.testing.assert_array_equal(normalise(jnp.array([1.0, NAN, INF, -INF])), [1.0, 0.0, 0.0, 0.0])
    assert ess(jnp.array([1.0, NAN])) == 1


def test_each_column_is_normalised_separately():
    columns = jnp.array([[0.0, -INF, 3.0], [0.0, -INF, -INF]])
    np.testing.assert_allclose(normalise(columns), [[0.5, 0.0, 1.0], [0.5, 0.0, 0.0]])


def test_a_density_of_zero_is_absorbing_in_ratios():
    new, old = jnp.array([1.0, -INF, 1.0, -INF]), jnp.array([0.5, 0.5, -INF, -INF])
    np.testing.assert_array_equal(log_ratio(new, old), [0.5, -INF, -INF, -INF])


@pytest.mark.parametrize(
    ("log_weights", "failed"),
    [([0.0, -INF], False), ([-INF, -INF], True), ([0.0, NAN], True), ([0.0, 1.0], False), ([-INF], True)],
)
def test_weights_fail_when_none_is_left_or_one_is_not_a_number(log_weights, failed):
    assert bool(degenerate(jnp.array(log_weights))) == failed


def test_a_weight_of_zero_stays_zero_after_any_move():
    before = population([0.0, -INF, 1.0])
    after = before.weigh(before.particles, jnp.array([0.5, 1e3, -INF]))
    np.testing.assert_array_equal(after.log_weights, [0.5, -INF, -INF])
    assert not after.degenerate


def test_a_nan_increment_removes_only_its_own_particle_and_is_flagged():
    before = population([0.0, 0.0, 0.0])
    after = before.weigh(before.particles, jnp.array([0.5, NAN, 0.25]))
    np.testing.assert_array_equal(after.log_weights, [0.5, -INF, 0.25])
    assert after.degenerate
    assert np.isfinite(after.total_log_evidence)


@pytest.mark.parametrize("below", [0.0, 0.5, 1.0])
def test_a_population_without_weight_keeps_its_particles_is_flagged_and_has_evidence_zero(below):
    after = population([-INF, -INF, -INF]).resample(jax.random.key(0), systematic, below)
    np.testing.assert_array_equal(after.particles.latents["z"], [0, 1, 2])
    np.testing.assert_array_equal(after.log_weights, np.zeros(3))
    assert after.degenerate
    assert after.total_log_evidence == -INF
    later = after.weigh(after.particles, jnp.ones(3)).resample(jax.random.key(1), systematic, below)
    assert later.degenerate
    assert later.total_log_evidence == -INF


@pytest.mark.parametrize("scheme", [systematic, stratified, residual, multinomial])
def test_resampling_moves_the_mean_weight_into_the_evidence_and_keeps_their_product(scheme):
    before = population([0.0, -INF, 2.0, 1.0])
    after = before.resample(jax.random.key(0), scheme, below=1.0)
    np.testing.assert_allclose(after.total_log_evidence, before.total_log_evidence, rtol=1e-6)
    np.testing.assert_array_equal(after.log_weights, np.zeros(4))
    np.testing.assert_array_equal(after.particles.latents["z"], after.ancestors)
    assert 1 not in after.ancestors


@pytest.mark.parametrize(
    ("log_weights", "below", "resampled"),
    [
        ([0.3, 0.3, 0.3, 0.3], 1.0, False),  # equal weights are never resampled
        ([0.0, 0.0, -INF, -INF], 0.5, False),  # an effective size of 2 is not below 2
        ([0.0, 0.0, -INF, -INF], 0.6, True),
        ([0.0, -INF, -INF, -INF], 0.0, False),
    ],
)
def test_a_population_is_resampled_only_below_its_threshold(log_weights, below, resampled):
    before = population(log_weights)
    after = before.resample(jax.random.key(0), systematic, below)
    expected = np.zeros(4) if resampled else np.array(log_weights)
    np.testing.assert_allclose(after.log_weights, expected)
    np.testing.assert_allclose(after.total_log_evidence, before.total_log_evidence, rtol=1e-6)


def test_num_ancestors_counts_initial_particles_with_descendants():
    after = population([-INF, 0.0, -INF, -INF]).resample(jax.random.key(0), systematic, below=1.0)
    assert after.num_ancestors == 1
    assert population([0.0, 0.0, 0.0]).num_ancestors == 3


def test_num_ancestors_of_a_million_particles_is_counted_without_comparing_all_pairs():
    ancestors = np.random.default_rng(0).integers(0, 10**6, 10**6, np.int32)
    many = eqx.tree_at(lambda one: one.ancestors, population([0.0]), jnp.asarray(ancestors))
    assert many.num_ancestors == len(np.unique(ancestors))


def test_the_mean_log_joint_ignores_particles_without_weight():
    particles = Particle({"z": jnp.zeros(3)}, {"z": jnp.array([-1.0, -INF, -3.0]), "x": jnp.zeros((3, 2))})
    weighted = population([0.0, -INF, 0.0]).weigh(particles, jnp.zeros(3))
    np.testing.assert_allclose(weighted.mean_log_joint, -2.0)
