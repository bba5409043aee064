"""Resampling schemes: expected counts L·w̄, no particle of weight zero, no change under equal weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import popgibbs as pg
from oracles import assert_mean
from popgibbs.smc import normalise
from popgibbs.smc.resampling import _invert

pytestmark = pytest.mark.usefixtures("quick_compilation")

SCHEMES = [pg.systematic, pg.stratified, pg.residual, pg.multinomial]
SIZES = [1, 3, 10, 100, 1000]
NUM_KEYS = 1000
DRAWS = {scheme: jax.jit(jax.vmap(scheme, (0, None))) for scheme in SCHEMES}

schemes = pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.__name__)
sizes = pytest.mark.parametrize("size", SIZES)


def weights_of(size: int) -> np.ndarray:
    """Uneven log-weights, some of them zero, at a large offset."""
    generator = np.random.default_rng(size)
    log_weights = generator.normal(scale=1.5, size=size) + 500.0
    log_weights[generator.random(size) < 0.3] = -np.inf
    log_weights[size // 2] = 500.0
    return log_weights.astype(np.float32)


def ancestors(scheme, log_weights: np.ndarray) -> np.ndarray:
    keys = jax.random.split(jax.random.key(len(log_weights)), NUM_KEYS)
    return np.asarray(DRAWS[scheme](keys, jnp.asarray(log_weights)))


def counts(chosen: np.ndarray, size: int) -> np.ndarray:
    return np.stack([np.bincount(row, minlength=size) for row in chosen])


@schemes
@sizes
def test_expected_counts_are_proportional_to_weights(scheme, size):
    log_weights = weights_of(size)
    expected = np.exp(log_weights.astype(np.float64) - 500.0)
    expected *= size / expected.sum()
    observed = counts(ancestors(scheme, log_weights), size)
    # The variance of a count is at most that of the multinomial scheme; a rare particle may have 5 picks more.
    allowed = 5 * np.sqrt(expected / NUM_KEYS) + 5 / NUM_KEYS
    assert np.all(np.abs(observed.mean(axis=0) - expected) <= np.where(expected > 0, allowed, 0.0))
    for seed in range(5):
        function = np.random.default_rng(seed).normal(size=size)
        assert_mean(observed @ function, expected @ function)


@schemes
@sizes
def test_every_draw_is_a_particle_that_has_weight(scheme, size):
    chosen = ancestors(scheme, weights_of(size))
    assert chosen.shape == (NUM_KEYS, size)
    assert chosen.min() >= 0
    assert chosen.max() < size
    assert np.all(np.isfinite(weights_of(size)[chosen]))


@schemes
@sizes
def test_a_single_particle_with_weight_gets_every_draw(scheme, size):
    log_weights = np.full(size, -np.inf, np.float32)
    log_weights[size // 3] = -900.0
    assert np.all(ancestors(scheme, log_weights) == size // 3)


@pytest.mark.parametrize("scheme", [pg.systematic, pg.stratified, pg.residual], ids=lambda scheme: scheme.__name__)
@sizes
def test_equal_weights_return_every_particle_once(scheme, size):
    chosen = ancestors(scheme, np.full(size, -3.7, np.float32))
    assert np.all(counts(chosen, size) == 1)


@pytest.mark.parametrize("scheme", [pg.systematic, pg.residual], ids=lambda scheme: scheme.__name__)
@sizes
def test_counts_of_systematic_and_residual_are_never_below_the_integer_part(scheme, size):
    log_weights = weights_of(size)
    weights = np.exp(log_weights.astype(np.float64) - 500.0)
    # Float32 rounds expected counts, so those that are very close to an integer may fall on either side of it.
    certain = np.floor(size * weights / weights.sum() - 1e-5 * size)
    assert np.all(counts(ancestors(scheme, log_weights), size) >= certain)


@pytest.mark.parametrize("size", [100, 1000])
def test_no_position_even_next_to_an_edge_picks_a_particle_of_weight_zero(size):
    generator = np.random.default_rng(0)
    invert = jax.jit(_invert)
    for _ in range(20):
        weights = np.where(generator.random(size) < 0.5, 0.0, generator.exponential(size=size))
        weights = (weights / weights.sum()).astype(np.float32)
        edges = size * np.cumsum(weights, dtype=np.float64)
        for ulps in range(-6, 7):
            positions = np.clip(edges + ulps * np.spacing(edges.astype(np.float32)), 0.0, size)
            cells = np.minimum(np.floor(positions), size - 1).astype(np.int32)
            chosen = invert(jnp.asarray(weights), jnp.asarray(cells), jnp.asarray(positions - cells, jnp.float32))
            assert np.all(weights[np.asarray(chosen)] > 0)


# Many particles: edges near 10⁶ need more digits than float32 has ------------------------------------------------------

MANY = [10**5, 10**6]
many = pytest.mark.parametrize("size", MANY)


def one_draw(scheme, log_weights: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(scheme)(jax.random.key(1), jnp.asarray(log_weights, jnp.float32)))


@pytest.mark.parametrize("scheme", [pg.systematic, pg.stratified], ids=lambda scheme: scheme.__name__)
@many
def test_positions_of_many_particles_are_in_the_exact_shares(scheme, size):
    log_weights = jnp.asarray(weights_of(size))
    shift = jax.random.uniform(jax.random.key(1), () if scheme is pg.systematic else (size,))
    edges = np.cumsum(np.asarray(normalise(log_weights), np.float64))
    exact = np.searchsorted(edges * size / edges[-1], np.arange(size) + np.asarray(shift, np.float64), side="right")
    # Edges are rounded by less than 10⁻³, so less than one draw in a thousand picks a neighbour instead.
    assert np.mean(one_draw(scheme, log_weights) != exact) < 1e-3


@pytest.mark.parametrize("scheme", [pg.stratified, pg.residual, pg.multinomial], ids=lambda scheme: scheme.__name__)
@many
def test_shares_near_one_are_not_rounded_to_one(scheme, size):
    expected = np.where(np.arange(size) % 2 == 0, 0.95, 1.05)
    observed = np.bincount(one_draw(scheme, np.log(expected)), minlength=size)
    for which in (0, 1):
        assert_mean(observed[which::2], expected[which])


def test_draws_have_a_finer_resolution_than_float32_uniforms():
    size = 10**6
    observed = np.bincount(one_draw(pg.multinomial, np.zeros(size)), minlength=size)
    # Of the 2²³ uniform numbers of float32, 8 fall into some particles' shares and 9 into others'.
    numbers = np.bincount((np.arange(2**23) * size) >> 23, minlength=size)
    for count in (8, 9):
        assert_mean(observed[numbers == count], 1.0)


@schemes
@many
def test_none_of_many_particles_without_weight_is_picked(scheme, size):
    log_weights = weights_of(size)
    assert np.all(np.isfinite(log_weights[one_draw(scheme, log_weights)]))


@pytest.mark.parametrize("scheme", [pg.systematic, pg.stratified, pg.residual], ids=lambda scheme: scheme.__name__)
@many
def test_many_equal_weights_return_every_particle_once(scheme, size):
    np.testing.assert_array_equal(one_draw(scheme, np.full(size, -3.7)), np.arange(size))
