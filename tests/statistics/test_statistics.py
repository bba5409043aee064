"""Neural sufficient statistics: conjugate updates are Bayes' rule, and masked points have no effect."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import assert_mean, normal_gamma_posterior
from popgibbs.statistics import (
    Beta,
    Dirichlet,
    Gamma,
    Normal,
    NormalGamma,
    Offsets,
    Pairwise,
    additive_update,
    conjugate_normal_gamma,
    mean_pool,
    pick,
    pointwise,
    pool,
    spread_points,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

MASK = jnp.array([True, True, False, True, False])
X = jnp.array([0.5, -1.2, jnp.nan, 2.0, 1e6])  # the masked points must have no effect
REAL = np.array([0.5, -1.2, 2.0])


def test_pooling_ignores_masked_points():
    np.testing.assert_allclose(pool(X, MASK), REAL.sum(), rtol=1e-6)
    np.testing.assert_allclose(mean_pool(X, MASK), REAL.mean(), rtol=1e-6)
    rows = X[:, None, None] * jnp.ones((2, 3))
    np.testing.assert_allclose(pool(rows, MASK), np.full((2, 3), REAL.sum()), rtol=1e-6)
    assert mean_pool(X, jnp.zeros(5, bool)) == 0


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"depth": 0},
        {"use_bias": False, "use_final_bias": False},
        {"final_activation": jnp.exp},
        {"activation": eqx.nn.PReLU()},
        {"out_size": "scalar"},
    ],
    ids=["plain", "no hidden layer", "no bias", "final activation", "learned activation", "scalar"],
)
def test_a_network_over_points_is_that_network_point_by_point(settings: dict):
    options = {"in_size": 3, "out_size": 2, "width_size": 5, "depth": 2, "activation": jnp.tanh} | settings
    network = eqx.nn.MLP(**options, key=jax.random.key(0))
    points = jax.random.normal(jax.random.key(1), (7, 3))
    expected = jnp.stack([network(point) for point in points])
    np.testing.assert_allclose(pointwise(network, points), expected, rtol=1e-5, atol=1e-6)


def test_a_pointwise_network_sees_each_point_with_its_joined_features():
    network = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    first, second = jnp.arange(8.0).reshape(4, 2), jnp.arange(4.0)[:, None]
    expected = [network(jnp.concatenate([first[n], second[n]])) for n in range(4)]
    np.testing.assert_allclose(pointwise(network, first, second), jnp.stack(expected), rtol=1e-6)


def test_the_additive_update_of_a_normal_is_bayes_for_a_known_scale():
    prior, scale = Normal(jnp.asarray(0.3), jnp.asarray(2.0)), 0.5
    updated = additive_update(prior, (X / scale**2, jnp.full(5, -0.5 / scale**2)), MASK)
    precision = 1 / 4 + 3 / scale**2
    np.testing.assert_allclose(updated.loc, (0.3 / 4 + REAL.sum() / scale**2) / precision, rtol=1e-5)
    np.testing.assert_allclose(updated.scale, precision**-0.5, rtol=1e-5)


def test_the_additive_update_of_a_gamma_is_bayes_for_counts():
    prior, counts = Gamma(jnp.asarray(2.0), jnp.asarray(0.5)), jnp.array([3.0, 0.0, 100.0, 7.0, 5.0])
    updated = additive_update(prior, (counts, -jnp.ones(5)), MASK)
    np.testing.assert_allclose((updated.concentration, updated.rate), (2.0 + 10.0, 0.5 + 3.0), rtol=1e-6)


def test_the_additive_update_of_a_beta_is_bayes_for_coins():
    prior, heads = Beta(jnp.asarray(2.0), jnp.asarray(0.5)), jnp.array([1.0, 0.0, 1.0, 1.0, 1.0])
    updated = additive_update(prior, (heads, 1 - heads), MASK)
    np.testing.assert_allclose((updated.a, updated.b), (2.0 + 2.0, 0.5 + 1.0), rtol=1e-6)


def test_the_additive_update_of_a_dirichlet_is_bayes_for_categories():
    prior = Dirichlet(jnp.array([0.5, 1.0, 2.0]))
    updated = additive_update(prior, (jax.nn.one_hot(jnp.array([2, 0, 1, 2, 1]), 3),), MASK)
    np.testing.assert_allclose(updated.concentration, [1.5, 1.0, 4.0], rtol=1e-6)


PRIOR = NormalGamma(jnp.asarray(0.2), jnp.asarray(0.1), jnp.asarray(2.0), jnp.asarray(1.5))


def problem(offset: float, scale: float, num_points: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Points in the plane in float32, and soft shares of three components."""
    generator = np.random.default_rng(3)
    values = (offset + scale * generator.standard_normal((num_points, 2))).astype(np.float32)
    return values, generator.dirichlet([0.3, 0.5, 1.0], size=num_points).astype(np.float32)


def assert_posterior(updated: NormalGamma, expected: tuple[np.ndarray, ...], rtol: float) -> None:
    for leaf, exact in zip(jax.tree.leaves(updated), expected, strict=True):
        assert leaf.shape == exact.shape
        np.testing.assert_allclose(leaf, exact, rtol=rtol)


def test_the_additive_update_of_a_normal_gamma_is_the_textbook_posterior():
    values = jnp.asarray(problem(0.0, 1.0)[0])
    half = jnp.full_like(values, 0.5)
    updated = additive_update(PRIOR, (half, -0.5 * values**2, values, -half), jnp.ones(60, bool))
    expected = normal_gamma_posterior(0.2, 0.1, 2.0, 1.5, values, np.ones((60, 1)))
    assert_posterior(updated, tuple(leaf[0] for leaf in expected), rtol=1e-4)


def test_the_conjugate_update_is_the_textbook_posterior_of_the_real_points():
    values, shares = problem(0.0, 1.0)
    mask = np.arange(60) % 3 > 0
    updated = conjugate_normal_gamma(PRIOR, jnp.asarray(values), jnp.asarray(shares), jnp.asarray(mask))
    assert_posterior(updated, normal_gamma_posterior(0.2, 0.1, 2.0, 1.5, values[mask], shares[mask]), rtol=1e-5)


@pytest.mark.parametrize("prior_loc", [0.0, 1e4])
def test_the_conjugate_update_does_not_cancel_far_from_the_origin(prior_loc):
    """At 1e4 float32 is spaced by 1e-3: the naive Σx² − (Σx)²/N has an error of about 1e3, the true value is 0.6."""
    values, shares = problem(1e4, 0.1)
    prior = NormalGamma(jnp.asarray(prior_loc), jnp.asarray(0.1), jnp.asarray(2.0), jnp.asarray(1e-3))
    updated = conjugate_normal_gamma(prior, jnp.asarray(values), jnp.asarray(shares), jnp.ones(60, bool))
    assert_posterior(updated, normal_gamma_posterior(prior_loc, 0.1, 2.0, 1e-3, values, shares), rtol=1e-3)


def test_a_component_without_points_keeps_the_prior():
    values, _ = problem(5.0, 1.0, num_points=1)
    updated = conjugate_normal_gamma(PRIOR, jnp.asarray(values), jnp.array([[1.0, 0.0]]), jnp.ones(1, bool))
    assert_posterior(
        jax.tree.map(lambda leaf: leaf[1], updated), tuple(np.full(2, leaf) for leaf in (0.2, 0.1, 2.0, 1.5)), rtol=1e-6
    )


def test_points_that_coincide_add_no_squares():
    values, shares = jnp.full((4, 2), 3.3), jnp.ones((4, 1))
    updated = conjugate_normal_gamma(PRIOR, values, shares, jnp.ones(4, bool))
    assert_posterior(updated, normal_gamma_posterior(0.2, 0.1, 2.0, 1.5, values, shares), rtol=1e-5)


def test_the_gradient_of_the_conjugate_update_is_that_of_the_textbook_formula():
    values, shares = (jnp.asarray(array) for array in problem(0.0, 1.0, num_points=6))
    mask = jnp.ones(6, bool)

    def textbook(values, shares):
        count = jnp.sum(shares, axis=0)[:, None]
        mean = shares.T @ values / count
        squares = jnp.einsum("nk,nkd->kd", shares, (values[:, None] - mean) ** 2)
        return 1.5 + squares / 2 + 0.1 * count / (2 * (0.1 + count)) * (mean - 0.2) ** 2

    actual = jax.jacobian(lambda v, s: conjugate_normal_gamma(PRIOR, v, s, mask).rate, (0, 1))(values, shares)
    expected = jax.jacobian(textbook, (0, 1))(values, shares)
    for mine, exact in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", [1e-10, 1e-20, 1e-30, 0.0])
def test_a_component_with_almost_no_points_has_a_finite_gradient(share):
    def loss(values, shares):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(conjugate_normal_gamma(PRIOR, values, shares, MASK)))

    values, shares = jnp.arange(10.0).reshape(5, 2), jnp.tile(jnp.array([1.0, share]), (5, 1))
    for gradient in jax.grad(loss, (0, 1))(values, shares):
        assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("num_components", [3, 20])
def test_a_pairwise_network_equals_one_on_the_concatenation(num_components):
    pairwise = Pairwise(2, 4, 8, key=jax.random.key(0))
    network = eqx.nn.MLP(6, "scalar", 8, 1, activation=jnp.tanh, key=jax.random.key(1))
    first = jnp.concatenate([pairwise.of_point.weight, pairwise.of_component.weight], axis=1)
    network = eqx.tree_at(
        lambda n: (n.layers[0].weight, n.layers[0].bias, n.layers[1].weight, n.layers[1].bias),
        network,
        (first, pairwise.of_component.bias, pairwise.out.weight, pairwise.out.bias),
    )
    points = jax.random.normal(jax.random.key(2), (5, 2))
    components = jax.random.normal(jax.random.key(3), (num_components, 4))
    expected = [[network(jnp.concatenate([point, component])) for component in components] for point in points]
    np.testing.assert_allclose(pairwise(points, components), np.array(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 2, 3)])
def test_picking_is_indexing(shape):
    values = jax.random.normal(jax.random.key(0), shape)
    component = jnp.array([3, 0, 2, 2, 1])
    np.testing.assert_array_equal(pick(values, component), values[component])


def seeds(points: np.ndarray, mask: np.ndarray, num: int, num_keys: int) -> np.ndarray:
    keys = jax.random.split(jax.random.key(0), num_keys)
    drawn = jax.jit(jax.vmap(lambda key: spread_points(key, jnp.asarray(points), jnp.asarray(mask), num)))
    return np.asarray(drawn(keys))


def test_seeds_are_never_masked_points():
    generator = np.random.default_rng(0)
    points = generator.normal(size=(40, 2)).astype(np.float32)
    mask = generator.random(40) < 0.4
    points[~mask] += 1e3
    assert np.all(np.abs(seeds(points, mask, 4, 5000)) < 100)
    only = np.arange(40) == 7
    assert np.all(seeds(points, only, 3, 100) == points[7])


@pytest.mark.parametrize("size", [1, 10, 60])
def test_the_first_seed_is_uniform_over_the_points(size):
    points = np.arange(size, dtype=np.float32)[:, None]
    drawn = seeds(points, np.ones(size, bool), 1, 5000)[:, 0]
    assert_mean(np.concatenate([drawn, drawn**2], axis=-1), np.array([points.mean(), np.mean(points**2)]))


def test_the_second_seed_is_drawn_by_squared_distance_to_the_first():
    points, mask = np.array([[0.0], [1.0], [3.0], [99.0]], np.float32), np.array([True, True, True, False])
    drawn = seeds(points, mask, 2, 50_000)[:, :, 0]
    first = drawn[:, :1] == points[:3, 0]
    assert_mean(first, np.full(3, 1 / 3))
    after_zero = drawn[drawn[:, 0] == 0, 1:] == points[:3, 0]
    assert_mean(after_zero, np.array([0.0, 0.1, 0.9]))


def test_seeds_of_points_that_coincide_are_that_point():
    drawn = seeds(np.full((6, 2), 2.5, np.float32), np.arange(6) < 4, 3, 10)
    assert np.all(drawn == 2.5)


def test_offsets_are_a_network_on_the_difference_of_every_pair():
    points, components = jax.random.normal(jax.random.key(0), (5, 2)), jax.random.normal(jax.random.key(1), (3, 2))
    offsets = Offsets(2, 8, 2, key=jax.random.key(2))
    found = np.array(offsets(points, components))
    for m, component in enumerate(components):
        for n, point in enumerate(points):
            expected = offsets.second(jnp.tanh(offsets.first(point - component)))
            np.testing.assert_allclose(found[m, :, n], expected, rtol=1e-5, atol=1e-6)
