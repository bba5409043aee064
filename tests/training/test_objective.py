"""The accumulated gradient is that of −Σ w̄ (log q + log p) with samples and weights held constant."""

import operator
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

import popgibbs as pg
from models import clusters, clusters_model, clusters_sampler
from popgibbs.data import Data
from popgibbs.model import Partition
from popgibbs.smc import BuiltSampler, Event, run
from popgibbs.training import accumulate

pytestmark = pytest.mark.usefixtures("quick_compilation")

NUM_SWEEPS, NUM_PARTICLES = 2, 3
X = {"x": np.array([0.4, 1.5, 0.9], np.float32)}
SITES = ("sigma", "mu", "c")  # one block per site, in this order


@pytest.fixture(scope="module")
def sampler() -> BuiltSampler:
    """A sampler that rarely resamples, so that incoming weights are rarely equal."""
    return clusters_sampler(ess_threshold=0.4, example={"x": np.array([-1.0, 0.5, 2.0, 1.0])}).built


@pytest.fixture(scope="module")
def batch() -> Data:
    """Two instances; the first has three points and is padded to four."""
    x = jnp.array([[-1.0, 0.3, 1.2, 1.2], [0.9, -0.8, -1.5, 2.0]])
    return Data({"x": x}, {"points": jnp.array([[True, True, True, False], [True, True, True, True]])})


def keys() -> jax.Array:
    return jax.random.split(jax.random.key(3), 2)


def variant(
    sampler: BuiltSampler, *, model: Any = clusters, move: pg.Move | None = None, whole: bool = False
) -> BuiltSampler:
    """The same sampler with another model, other moves, or without the split of weights into elements."""
    blocks = tuple(block.with_move(move or pg.Reweight()) for block in sampler.blocks)
    plans = tuple(replace(plan, partition=Partition(sampler.sites)) if whole else plan for plan in sampler.plans)
    return replace(sampler, model=model, blocks=blocks, plans=plans)


def record(sampler: BuiltSampler, batch: Data) -> list[tuple[int | None, Event]]:
    """Every event of a run in order, with the block that it belongs to."""
    events: list[tuple[int | None, Event]] = []

    def observe(carry: None, sampler: BuiltSampler, batch: Data, event: Any) -> None:
        plain = replace(event, keys=jax.random.key_data(event.keys))
        index = event.block
        jax.debug.callback(lambda event: events.append((index, jax.tree.map(np.array, event))), plain, ordered=True)

    def call(keys: jax.Array, batch: Data) -> None:
        run(sampler, keys, batch, num_sweeps=NUM_SWEEPS, num_particles=NUM_PARTICLES, observe=observe)

    jax.jit(call)(keys(), batch)
    jax.effects_barrier()
    return events


def log_probs(values: dict[str, Any], program: Callable[..., Any], *arguments: Any) -> dict[str, jax.Array]:
    """Log-probabilities of a program's sites at the given values, by NumPyro itself."""
    trace = handlers.trace(handlers.substitute(handlers.seed(program, 0), values)).get_trace(*arguments)
    return {name: site["fn"].log_prob(site["value"]) for name, site in trace.items() if site["type"] == "sample"}


def softmax(log_weights: np.ndarray) -> np.ndarray:
    weights = np.exp(log_weights - log_weights.max())
    return weights / weights.sum()


def by_hand(arrays: Any, static: Any, batch: Data, events: list[tuple[int | None, Event]]) -> Any:
    """The loss of the unrolled run, particle by particle."""
    sampler = eqx.combine(arrays, static)
    loss = 0.0
    for row, (index, recorded), particle in product(range(2), events, range(NUM_PARTICLES)):
        event = jax.tree.map(operator.itemgetter(row), recorded)
        real = np.flatnonzero(batch.mask["points"][row])
        loss -= weighted_log_density(sampler, batch["x"][row][real], real, index, event, particle)
    return loss / 2


def weighted_log_density(
    sampler: BuiltSampler, x: jax.Array, real: np.ndarray, index: int | None, event: Any, particle: int
) -> jax.Array:
    """w̄ log q + w̄ log p of one particle at one step, with explicit weights of real elements."""
    data = Data({"x": x}, {"points": jnp.ones(len(real), bool)})
    proposed = {} if index is None else event.proposed
    latents = {name: value[particle] for name, value in (event.latents | proposed).items()}
    latents["c"] = latents["c"][real]
    log_p = log_probs(latents, sampler.model, x)
    log_weights = event.log_v if index is None else event.log_weights + event.log_v.sum(axis=1)
    weight = softmax(log_weights)[particle]
    weights = dict.fromkeys(log_p, weight)
    if index is None:
        log_q = jnp.zeros(())
        for place, block in enumerate(sampler.blocks):
            first = getattr(block.proposal, "initial", block.proposal)
            drawn = {name: latents[name] for name in SITES[:place]}
            log_q += weight * jnp.sum(log_probs(latents, first, data, drawn, None)[SITES[place]])
    else:
        site = SITES[index]
        elements = np.array([softmax(event.log_weights + log_v)[particle] for log_v in event.log_v.T])
        if site == "mu":
            weights |= {"mu": elements, "x": elements[latents["c"]]}
        elif site == "c":
            weights |= {"c": elements[real], "x": elements[real]}
        others = {name: value for name, value in latents.items() if name != site}
        log_q = jnp.sum(weights[site] * log_probs(latents, sampler.blocks[index].proposal, data, others, None)[site])
    return log_q + sum(jnp.sum(weights[name] * log_p[name]) for name in log_p)


def gradient_of(sampler: BuiltSampler, batch: Data, num_sweeps: int = NUM_SWEEPS, **options: Any) -> Any:
    arrays, static = eqx.partition(sampler, eqx.is_inexact_array)

    @jax.jit
    def compiled(arrays: Any) -> Any:
        built = eqx.combine(arrays, static)
        return accumulate(built, keys(), batch, num_sweeps=num_sweeps, num_particles=NUM_PARTICLES, **options)[0]

    return compiled(arrays)


def assert_same(found: Any, wanted: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
        assert np.any(np.abs(b) > 1e-3)


@pytest.fixture(scope="module")
def weighed(sampler: BuiltSampler, batch: Data) -> Any:
    """The gradient of a model with arrays, with every block weighed, by element where that is valid."""
    return gradient_of(variant(sampler, model=clusters_model()), batch)


@pytest.mark.parametrize("move", [pg.Reweight(), pg.Metropolis()], ids=["weigh", "metropolis"])
def test_accumulated_gradient_is_that_of_the_unrolled_loss(
    sampler: BuiltSampler, batch: Data, weighed: Any, move: pg.Move
) -> None:
    """σ is weighed as a whole, μ by cluster, c by point."""
    chosen = variant(sampler, model=clusters_model(), move=move)
    events = record(chosen, batch)
    assert [index for index, _ in events] == [None, 0, 1, 2, 0, 1, 2]
    assert any(np.ptp(event.log_weights) > 0.1 for index, event in events if index is not None)
    arrays, static = eqx.partition(chosen, eqx.is_inexact_array)
    expected = jax.grad(by_hand)(arrays, static, batch, events)
    found = weighed if isinstance(move, pg.Reweight) else gradient_of(chosen, batch)
    assert_same(found.arrays, expected)


def test_a_model_may_learn_only_at_the_end_of_sweeps(sampler: BuiltSampler, batch: Data, weighed: Any) -> None:
    chosen = variant(sampler, model=clusters_model())
    found = gradient_of(chosen, batch, update_model="every_sweep")
    assert_same(found.arrays.blocks, weighed.arrays.blocks)
    ends = [(index, event) for index, event in record(chosen, batch) if index == len(SITES) - 1]
    arrays, static = eqx.partition(chosen, eqx.is_inexact_array)
    assert_same(found.arrays.model, jax.grad(by_hand)(arrays, static, batch, ends).model)


def test_without_sweeps_a_model_learns_at_the_initial_step(sampler: BuiltSampler, batch: Data) -> None:
    chosen = variant(sampler, model=clusters_model())
    by_sweeps, by_blocks = (gradient_of(chosen, batch, 0, update_model=when) for when in ("every_sweep", "every_block"))
    assert_same(by_sweeps.arrays.model, by_blocks.arrays.model)


def test_model_without_arrays_gives_proposals_the_same_gradient(sampler: BuiltSampler, batch: Data, weighed: Any) -> None:
    found = gradient_of(sampler, batch)
    assert not jax.tree.leaves(found.arrays.model)
    assert_same(found.arrays.blocks, weighed.arrays.blocks)
    np.testing.assert_allclose(found.loss, weighed.loss, rtol=1e-4)


def test_weights_by_element_and_whole_weights_agree_in_the_limit_of_many_particles(
    sampler: BuiltSampler, batch: Data
) -> None:
    """Both are consistent for the same expectation, so their paired difference is Monte Carlo error."""
    row = jax.tree.map(lambda leaf: leaf[1:], batch)

    def estimates(sampler: BuiltSampler) -> np.ndarray:
        def one(key: jax.Array) -> jax.Array:
            gradient, _ = accumulate(sampler, key[None], row, num_sweeps=1, num_particles=1000)
            return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(gradient.arrays.blocks)])

        return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 24)))

    split, whole = estimates(sampler), estimates(variant(sampler, whole=True))
    difference = split - whole
    error = difference.std(axis=0, ddof=1) / np.sqrt(len(difference))
    assert np.any(error > 0)
    assert np.all(np.abs(difference.mean(axis=0)) < 4 * error + 1e-5)
    assert np.all(error < 0.02)  # small against the gradient itself, 0.05 to 0.9


class Shifted(eqx.Module):
    """μ ~ Normal(loc, 1), x_n ~ Normal(μ, 1)."""

    loc: jax.Array

    def __call__(self, x: jax.Array) -> None:
        mu = numpyro.sample("mu", dist.Normal(self.loc, 1.0))
        with numpyro.plate("points", x.shape[0]):
            numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)


class Borrowed(eqx.Module):
    """A proposal that reads the model's array, or a constant of the same value."""

    a: jax.Array
    constant: float | None = eqx.field(static=True)

    def __call__(self, data: Data, latents: Any, model: Any) -> None:
        loc = model.loc if self.constant is None else self.constant
        numpyro.sample("mu", dist.Normal(self.a * data["x"][0] + loc, 1.0))


def test_gradient_of_a_proposal_does_not_reach_the_model_that_it_reads() -> None:
    def gradient(constant: float | None) -> Any:
        proposal = Borrowed(jnp.asarray(0.3), constant)
        apg = pg.APG(
            Shifted(jnp.asarray(0.25)), data={"x": (None,)}, blocks=[pg.Block("mu", proposal=proposal)], example=X
        )
        batch = Data({"x": jnp.asarray(X["x"])[None]}, {})
        return jax.jit(lambda: accumulate(apg.built, keys()[:1], batch, num_sweeps=1, num_particles=5)[0].arrays)()

    assert_same(gradient(None), gradient(0.25))


@pytest.mark.parametrize("proposal", [pg.Prior(), pg.Laplace()])
def test_a_proposal_built_from_the_model_gives_the_model_no_gradient(proposal: pg.Kernel) -> None:
    """At the first draw θ gets −Σ w̄ ∇ log p(x, z) alone; log q of these proposals depends on θ too."""
    model = Shifted(jnp.asarray(0.25))
    blocks = [pg.Block("mu", proposal=proposal, move=pg.Metropolis())]
    built = pg.APG(model, data={"x": (None,)}, blocks=blocks, example=X).built
    batch = Data({"x": jnp.asarray(X["x"])[None]}, {})
    population, _, _ = run(built, keys()[:1], batch, num_sweeps=0, num_particles=5)
    weights = jax.nn.softmax(population.log_weights[0, 0])

    def loss(model: Shifted) -> jax.Array:
        def log_p(mu: jax.Array) -> jax.Array:
            return replace(built, model=model).target(Data({"x": batch.values["x"][0]}, {})).log_joint({"mu": mu})

        return -jnp.sum(weights * jax.vmap(log_p)(population.particles.latents["mu"][0, 0]))

    learned, _ = accumulate(built, keys()[:1], batch, num_sweeps=0, num_particles=5)
    np.testing.assert_allclose(learned.arrays.model.loc, jax.grad(loss)(model).loc, rtol=1e-4)


def test_the_ess_fraction_is_that_of_the_weights_in_the_gradient(sampler, batch):
    """For each block, 1 / (L Σ w̄²) with each real element's weights, averaged over elements, instances and sweeps."""
    weighed = variant(sampler)
    shares: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for index, recorded in record(weighed, batch):
        if index is None:
            continue
        for row in range(2):
            event = jax.tree.map(operator.itemgetter(row), recorded)
            columns = event.log_v.T
            if SITES[index] == "c":
                columns = columns[np.asarray(batch.mask["points"][row])]
            weights = np.array([softmax(event.log_weights + log_v) for log_v in columns])
            shares[index].append(np.mean(1 / (NUM_PARTICLES * np.sum(weights**2, axis=1))))
    np.testing.assert_allclose(gradient_of(weighed, batch).ess_fraction, [np.mean(s) for s in shares.values()], rtol=1e-4)
