"""The deep mixture: its data, the proposals that see the decoder, and the measures of the learned curve."""

from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest

from oracles import assert_mean
from popgibbs.model import ProposalData
from popgibbs.paper.dmm import DMM
from popgibbs.paper.dmm.data import RADIUS, ring, simulate
from popgibbs.paper.dmm.experiment import check
from popgibbs.paper.dmm.measures import best_agreement, clear_points
from popgibbs.paper.dmm.model import CENTRE_SCALE, NOISE, DeepMixture
from popgibbs.paper.dmm.proposals import Centres, seeds
from popgibbs.paper.tables import held_out, log_joint_at

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(4)
RING = DeepMixture(ring)


def complete(x: jax.Array) -> ProposalData:
    return ProposalData({"x": x}, {"points": jnp.ones(x.shape[0], bool)})


def test_points_are_spread_equally_over_four_rings():
    instance, truth = simulate(KEY, 400)
    radius = np.linalg.norm(instance["x"] - truth["mu"][truth["c"]], axis=-1)
    np.testing.assert_array_equal(np.bincount(truth["c"]), [100] * 4)
    assert_mean(radius, RADIUS + NOISE**2 / (2 * RADIUS))
    assert_mean((radius - RADIUS) ** 2, NOISE**2)
    np.testing.assert_allclose(truth["mu"][truth["c"]] + ring(truth["h"]), instance["x"], atol=6 * NOISE)


@pytest.fixture(scope="module")
def default():
    return DMM.build("default", KEY, DMM.size)


def test_the_log_joint_at_the_generating_latents_is_the_known_one(default):
    """It is +50.3 at N=200, by a simulation of 20,000 instances."""
    instances, truth = held_out(DMM, 3, 400, {"points": 200})
    assert_mean(log_joint_at(DMM, default, instances, truth), 50.3)


def test_the_update_of_the_centres_is_their_exact_conditional():
    """Before its scale is trained: p(μ | x, c, h) is Normal for each cluster."""
    instance, truth = simulate(KEY, 40)
    with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as trace:
        Centres()(complete(instance["x"]), truth, RING)
    found = trace["mu"]["fn"].base_dist
    for m in range(4):
        rest = np.asarray(instance["x"] - ring(truth["h"]), float)[truth["c"] == m]
        variance = 1 / (len(rest) / NOISE**2 + CENTRE_SCALE**-2)
        np.testing.assert_allclose(found.variance[m], [variance] * 2, rtol=1e-5)
        np.testing.assert_allclose(found.mean[m], variance * rest.sum(axis=0) / NOISE**2, rtol=1e-4)


def nearest_centres(x: jax.Array, mask: jax.Array, key: jax.Array) -> jax.Array:
    with numpyro.handlers.seed(rng_seed=key):
        return seeds(ProposalData({"x": x}, {"points": mask}), RING)


def test_seeds_are_at_the_centres_of_the_rings():
    """In eight of ten instances, some draw has a seed within a fifth of the radius of every true centre."""
    keys = jax.random.split(KEY, 10)
    instances, truth = jax.vmap(lambda key: simulate(key, 200))(keys)
    mask = jnp.ones((10, 200), bool)
    many = jax.vmap(jax.vmap(nearest_centres, (None, None, 0)), (0, 0, None))
    found = many(instances["x"], mask, jax.random.split(KEY, 8))
    distance = jnp.linalg.norm(truth["mu"][:, None, :, None] - found[:, :, None], axis=-1)
    worst = jnp.min(jnp.max(jnp.min(distance, axis=-1), axis=-1), axis=-1)
    assert np.sort(worst)[7] < 0.2 * RADIUS


def test_padded_points_do_not_affect_the_seeds():
    x = simulate(KEY, 60)[0]["x"]
    padded = jnp.concatenate([x, jnp.full((20, 2), 50.0)])
    whole = nearest_centres(x, jnp.ones(60, bool), KEY)
    np.testing.assert_allclose(nearest_centres(padded, jnp.arange(80) < 60, KEY), whole, rtol=1e-4, atol=1e-4)


def test_labels_are_compared_after_the_best_renaming():
    generator = np.random.default_rng(0)
    for _ in range(5):
        truth, found = generator.integers(0, 4, (2, 30))
        best = max(np.sum(np.array(names)[found] == truth) for names in permutations(range(4)))
        assert best_agreement(truth, found) == best


def test_a_point_is_clear_if_no_other_ring_is_near():
    truth = {"mu": np.array([[0.0, 0.0], [4.2, 0.0], [20.0, 0.0], [40.0, 0.0]]), "c": np.array([0, 0, 1])}
    x = np.array([[2.0, 0.0], [-2.0, 0.0], [6.2, 0.0]])  # the first is 0.2 from the second ring
    np.testing.assert_array_equal(clear_points(x, truth), [False, True, True])


@pytest.mark.parametrize(
    ("shape", "message"),
    [((5, 3), r"shape \(5, 3\); the mixture takes points in the plane"), ((3, 2), "3 points, fewer")],
)
def test_instances_that_do_not_fit_are_refused_in_one_sentence(shape, message):
    with pytest.raises(ValueError, match=f"instance 2: .*{message}"):
        check({"x": np.zeros(shape)}, "instance 2")


def test_a_sampler_without_sweeps_spends_the_budget_on_particles():
    """RWS draws K·L particles once, where the others have L particles and K − 1 sweeps."""
    assert DMM.variants["default"].budget(19, 10) == {"num_sweeps": 19, "num_particles": 10}
    assert DMM.variants["rws"].budget(19, 10) == {"num_sweeps": 0, "num_particles": 200}
