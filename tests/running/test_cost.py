"""Costs of compiled programs: a block computes only its own factors, memory is flat in sweeps, networks run once."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import popgibbs as pg
from models import centred_sampler, ragged
from popgibbs.data import Data, complete
from popgibbs.paper.gmm import GMM
from popgibbs.smc import initialise, update
from popgibbs.training import Budget, TrainingStep, start

SIZE = 64
KEY = jax.random.key(0)
# Costs are determined before code generation, so the generated code need not be fast.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


# Locality ---------------------------------------------------------------------------------------------------------------


def model_with(factor: Callable[[jax.Array], jax.Array]) -> Callable[..., None]:
    """`a` and `b` have different children, and the child of `b` has a factor of chosen cost."""

    def model(x: jax.Array, y: jax.Array, matrix: jax.Array) -> None:
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(jnp.zeros(SIZE), 1.0).to_event(1))
        numpyro.sample("x", dist.Normal(a, 1.0).expand([5]).to_event(1), obs=x)
        numpyro.sample("y", dist.Normal(factor(matrix @ b), 1.0).to_event(1), obs=y)

    return model


def propose(data: Any, latents: Any, model: Any) -> None:
    numpyro.sample("b", dist.Normal(jnp.zeros(SIZE), 1.0).to_event(1))


@pytest.fixture(scope="module")
def flops() -> dict[str, list[float]]:
    """Operations of an update of `a` and of `b`, with a cheap and an expensive factor on `b`."""
    example = {"x": np.ones(5), "y": np.ones(SIZE), "matrix": np.eye(SIZE)}

    def of_updates(factor: Callable[[jax.Array], jax.Array]) -> list[float]:
        blocks = [pg.Block("a", proposal=pg.Prior()), pg.Block("b", proposal=propose)]
        sampler = pg.APG(model_with(factor), data={}, blocks=blocks, example=example).built
        data = Data({name: jnp.asarray(value, jnp.float32) for name, value in example.items()}, {})
        population = jax.eval_shape(lambda key: initialise(key, sampler, data, 4)[0], KEY)

        def cost(index: int) -> float:
            lowered = jax.jit(lambda key, data, population: update(key, sampler, index, data, population)).lower(
                KEY, data, population
            )
            return lowered.compile(QUICK).cost_analysis()["flops"]

        return [cost(0), cost(1)]

    def expensive(values: jax.Array) -> jax.Array:
        return jnp.ones((SIZE, SIZE)) @ jnp.tanh(jnp.outer(values, values)) @ values

    return {"cheap": of_updates(lambda values: values), "expensive": of_updates(expensive)}


def test_a_block_does_not_compute_factors_without_its_sites(flops: dict[str, list[float]]) -> None:
    assert flops["expensive"][0] == pytest.approx(flops["cheap"][0], rel=0.01)


def test_a_block_computes_each_factor_of_its_sites_once(flops: dict[str, list[float]]) -> None:
    """For each of four particles the new state is scored, but not the old one."""
    extra = flops["expensive"][1] - flops["cheap"][1]
    once = 4 * 2 * SIZE**3
    assert once < extra < 1.5 * once


# Memory and networks ----------------------------------------------------------------------------------------------------


def compiled_step(apg: pg.APG, instance: dict[str, np.ndarray], num_sweeps: int, num_particles: int) -> Any:
    optimiser = optax.adam(1e-3)
    step = TrainingStep(apg.built, optimiser, Budget(num_particles=num_particles, num_sweeps=num_sweeps, batch_size=2))
    one = complete({name: jnp.asarray(value) for name, value in instance.items()}, apg.axes)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), one)
    state = start(apg.built, KEY, optimiser)
    shared, keys, weights = step.inputs(state)
    return step.sum.compiled.lower(shared, (keys, weights, batch)).compile(QUICK)


def test_memory_of_training_does_not_grow_with_the_sweeps() -> None:
    (instance,) = ragged((100,))
    apg = centred_sampler(example=instance)
    few, many = (compiled_step(apg, instance, sweeps, 20).memory_analysis().temp_size_in_bytes for sweeps in (4, 40))
    assert few > 20 * 100 * 2 * 4
    assert many == pytest.approx(few, rel=0.01)


def test_network_runs_once_in_an_update_of_a_training_step() -> None:
    """Drawing a proposal, scoring the old state and differentiating share one run of the network."""
    instance = {"x": np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)}
    apg = GMM.build("default", KEY, GMM.size)
    text = compiled_step(apg, instance, 3, 4).as_text()
    runs = [line for line in text.splitlines() if re.search(r"f32\[2,4,6,32\]\S* tanh\(", line)]
    in_sweeps = [line for line in runs if "/while/body" in line]
    assert len(in_sweeps) == 3  # one per cluster
    assert len(runs) == 6  # and as many in the initial step
