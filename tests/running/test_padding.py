"""Padding, bucketing and batching never change a result."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import popgibbs as pg
from models import AXES, centred_sampler, clusters_model, clusters_sampler, conditional_at, ragged
from popgibbs._typing import Values
from popgibbs.data import Data, pad
from popgibbs.model import Particle
from popgibbs.moves import MoveKeys
from popgibbs.proposals import Enumerated
from popgibbs.smc import BuiltSampler, initialise
from popgibbs.training import accumulate

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(5)


@pytest.fixture(scope="module")
def clusters() -> BuiltSampler:
    return clusters_sampler(clusters_model(), example={"x": np.array([-1.0, 0.5, 2.0, 1.0])}).built


@pytest.fixture(scope="module")
def centred() -> pg.APG:
    return centred_sampler(pg.Metropolis(), example=ragged((4,))[0])


def padded(values: Values, size: int) -> Data:
    """An instance whose points are padded to a size."""
    longer = pad(values, AXES, {"points": size})
    mask = np.arange(size) < values["x"].shape[0]
    return Data({name: jnp.asarray(value) for name, value in longer.items()}, {"points": jnp.asarray(mask)})


# At given latents -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given(pg.BoundKernel):
    """A kernel that draws given values."""

    bound: pg.BoundKernel
    values: Values

    def draw(self) -> tuple[Values, jax.Array]:
        return self.values, self.score(self.values)

    def score(self, values: Values) -> jax.Array:
        return self.bound.score(values)


@pytest.fixture(scope="module")
def evaluate(clusters: BuiltSampler) -> Callable[..., Any]:
    """Log-probabilities, incremental weights by block, and the gradient of log p + log q, at given latents."""
    arrays, static = eqx.partition(clusters, eqx.is_inexact_array)

    @jax.jit
    def compiled(data: Data, old: Values, new: Values) -> Any:
        particle = Particle(old, clusters.target(data).log_probs(old))
        log_v = []
        for index, block in enumerate(clusters.blocks):
            conditional = conditional_at(clusters, index, data, old)
            given = Given(block.kernel.bind(KEY, conditional), {name: new[name] for name in block.sites})
            log_v.append(block.move(MoveKeys(KEY, KEY), given, conditional, particle)[1])

        def log_density(arrays: Any) -> jax.Array:
            sampler = eqx.combine(arrays, static)
            total = sampler.target(data).log_joint(old)
            for index, block in enumerate(sampler.blocks):
                values = {name: old[name] for name in block.sites}
                bound = block.kernel.bind(KEY, conditional_at(sampler, index, data, old))
                total += jnp.sum(bound.score(values))
            return total

        return particle.log_probs, log_v, jax.grad(log_density)(arrays)

    return compiled


@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(size=st.sampled_from([1, 3]), longer=st.sampled_from([4, 6]), seed=st.integers(0, 2**31))
def test_padding_changes_no_number_at_given_latents(
    evaluate: Callable[..., Any], size: int, longer: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)

    def latents() -> Values:
        return {
            "sigma": np.exp(generator.normal()).astype(np.float32),
            "mu": generator.normal(size=2).astype(np.float32),
            "c": generator.integers(0, 2, size).astype(np.int32),
        }

    def lengthened(values: Values) -> Values:
        fillers = generator.integers(0, 2, longer - size).astype(np.int32)
        return {**values, "c": np.concatenate([values["c"], fillers])}

    x, old, new = {"x": generator.normal(size=size).astype(np.float32)}, latents(), latents()
    log_probs, log_v, gradient = evaluate(padded(x, size), old, new)
    log_probs_padded, log_v_padded, gradient_padded = evaluate(padded(x, longer), lengthened(old), lengthened(new))
    for name in ("c", "x"):
        assert not np.any(log_probs_padded[name][size:])
        log_probs_padded[name] = log_probs_padded[name][:size]
    assert not np.any(log_v_padded[2][size:])
    log_v_padded[2] = log_v_padded[2][:size]
    for found, wanted in [(log_probs_padded, log_probs), (log_v_padded, log_v), (gradient_padded, gradient)]:
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_padding_does_not_change_the_weights_of_an_enumerated_first_draw(clusters: BuiltSampler) -> None:
    enumerated = eqx.tree_at(lambda sampler: sampler.blocks[2].kernel, clusters, Enumerated())
    x = {"x": np.array([0.3, -1.0, 1.4], np.float32)}
    first, second = (
        jax.jit(lambda data: initialise(KEY, enumerated, data, 4)[0].log_weights)(padded(x, size)) for size in (3, 5)
    )
    np.testing.assert_allclose(first, second, rtol=1e-4)


# Whole runs -------------------------------------------------------------------------------------------------------------


def test_padding_does_not_change_the_gradient_of_a_run(centred: pg.APG) -> None:
    """A real element draws the same random numbers whether or not others follow it."""
    sampler = replace(centred.built, ess_threshold=0.5)
    (instance,) = ragged((3,), seed=2)

    def gradient(size: int) -> Any:
        batch = jax.tree.map(lambda leaf: leaf[None], padded(instance, size))
        return jax.jit(lambda: accumulate(sampler, KEY[None], batch, num_sweeps=2, num_particles=4))()

    for a, b in zip(jax.tree.leaves(gradient(3)), jax.tree.leaves(gradient(5)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


SIZES = (2, 3, 6, 6, 4, 5, 6, 6, 6, 6, 6, 6)  # padded into the two buckets 5 and 6


@pytest.fixture(scope="module")
def posterior(centred: pg.APG) -> pg.Posterior:
    return centred.sample(KEY, ragged(SIZES), num_sweeps=2, num_particles=3, num_populations=2, batch_size=1)


def test_samples_of_ragged_instances_have_their_own_sizes(posterior: pg.Posterior) -> None:
    assert [posterior[i]["z"].shape for i in range(len(SIZES))] == [(2, 3, size, 2) for size in SIZES]
    assert all(posterior[i]["mu"].shape == (2, 3, 2) for i in range(len(SIZES)))


def test_results_do_not_depend_on_the_bucket(centred: pg.APG, posterior: pg.Posterior) -> None:
    alone = centred.sample(KEY, ragged(SIZES)[:3], num_sweeps=2, num_particles=3, num_populations=2, batch_size=1)
    for i in range(3):
        for name in ("mu", "z"):
            np.testing.assert_allclose(alone[i][name], posterior[i][name], rtol=1e-4, atol=1e-4)
    for name in ("log_evidence", "weights", "ess", "acceptance", "log_joint"):
        np.testing.assert_allclose(getattr(alone, name), getattr(posterior, name)[:3], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch_size", [2, 100])
def test_results_do_not_depend_on_the_batch_size(centred: pg.APG, batch_size: int) -> None:
    """One instance at a time is the loop over instances."""

    def sample(batch_size: int) -> pg.Posterior:
        return centred.sample(
            KEY, ragged((6,) * 5, seed=1), num_sweeps=2, num_particles=3, num_populations=2, batch_size=batch_size
        )

    loop, batched = sample(1), sample(batch_size)
    for i in range(5):
        for name in ("mu", "z"):
            np.testing.assert_allclose(loop[i][name], batched[i][name], rtol=1e-4, atol=1e-4)
    for name in ("log_evidence", "weights", "ess", "acceptance", "log_joint"):
        np.testing.assert_allclose(getattr(loop, name), getattr(batched, name), rtol=1e-4, atol=1e-4)
    assert len(np.unique(loop.log_evidence)) == 5
