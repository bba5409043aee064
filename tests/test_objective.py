"""The accumulated gradient is that of −Σ w̄ (log q + log p) with samples and weights held constant."""

from collections.abc import Callable, Iterator
from dataclasses import replace
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
from models import clusters, clusters_model, clusters_sampler, quick_compilation
from popgibbs.elements import Partition
from popgibbs.instances import Data
from popgibbs.objective import accumulate
from popgibbs.sampler import Event, Sampler, run

NUM_SWEEPS, NUM_PARTICLES = 2, 3
X = {"x": np.array([0.4, 1.5, 0.9], np.float32)}
SITES = ("sigma", "mu", "c")  # a block each, in this order


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with quick_compilation():
        yield


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    """Resampling is rare, so that incoming weights are seldom equal."""
    return clusters_sampler(resample_below=0.4, example={"x": np.array([-1.0, 0.5, 2.0, 1.0])}).built


@pytest.fixture(scope="module")
def batch() -> Data:
    """Two instances; the first has three points and is padded to four."""
    x = jnp.array([[-1.0, 0.3, 1.2, 1.2], [0.9, -0.8, -1.5, 2.0]])
    return Data({"x": x}, {"points": jnp.array([[True, True, True, False], [True, True, True, True]])})


def keys() -> jax.Array:
    return jax.random.split(jax.random.key(3), 2)


def variant(sampler: Sampler, *, model: Any = clusters, move: pg.Move | None = None, whole: bool = False) -> Sampler:
    """The same sampler with another model, other moves, or without the split of weights into elements."""
    blocks = tuple(
        pg.Block(*block.sites, proposal=block.proposal, move=move or pg.Weigh(), by=block.by) for block in sampler.blocks
    )
    partitions = (Partition(sampler.sites),) * len(blocks) if whole else sampler.partitions
    return replace(sampler, model=model, blocks=blocks, partitions=partitions)


def record(sampler: Sampler, batch: Data) -> list[tuple[int | None, Event]]:
    """Every event of a run in order, with the block that it belongs to."""
    events: list[tuple[int | None, Event]] = []

    def observe(carry: None, sampler: Sampler, index: int | None, batch: Data, event: Event) -> None:
        plain = event._replace(keys=jax.random.key_data(event.keys))
        jax.debug.callback(lambda event: events.append((index, jax.tree.map(np.array, event))), plain, ordered=True)

    def call(keys: jax.Array, batch: Data) -> None:
        run(sampler, keys, batch, num_sweeps=NUM_SWEEPS, num_particles=NUM_PARTICLES, observe=observe)

    jax.jit(call)(keys(), batch)
    jax.effects_barrier()
    return events


def log_probs(program: Callable[[], Any], values: dict[str, Any]) -> dict[str, jax.Array]:
    """Log-probabilities of all sites at the given values, by NumPyro itself."""
    trace = handlers.trace(handlers.substitute(handlers.seed(program, 0), values)).get_trace()
    return {name: site["fn"].log_prob(site["value"]) for name, site in trace.items() if site["type"] == "sample"}


def softmax(log_weights: np.ndarray) -> np.ndarray:
    weights = np.exp(log_weights - log_weights.max())
    return weights / weights.sum()


def by_hand(arrays: Any, static: Any, batch: Data, events: list[tuple[int | None, Event]], whole: bool) -> Any:
    """The loss of the unrolled run, particle by particle and point by point."""
    sampler = eqx.combine(arrays, static)
    total = 0.0
    for row in range(2):
        real = np.flatnonzero(batch.mask["points"][row])
        x = np.asarray(batch["x"][row])[real]
        data = Data({"x": jnp.asarray(x)}, {"points": jnp.ones(len(real), bool)})
        for index, recorded in events:
            event = jax.tree.map(lambda leaf: leaf[row], recorded)  # noqa: B023
            weights = softmax(event.log_weights + event.log_v.sum(axis=1))
            for particle in range(NUM_PARTICLES):
                old = {
                    name: value[particle][real] if name == "c" else value[particle]
                    for name, value in event.latents.items()
                }
                proposed = {
                    name: value[particle][real] if name == "c" else value[particle]
                    for name, value in event.proposed.items()
                }
                new = {**old, **proposed}
                log_p = log_probs(lambda: sampler.model(x=data["x"]), new)  # noqa: B023
                weight = weights[particle]
                factors = dict.fromkeys(log_p, weight)
                if index is None:
                    log_q = 0.0
                    for place, block in enumerate(sampler.blocks):
                        call = getattr(block.proposal, "initial", block.proposal)
                        seen = {name: new[name] for name in SITES[:place]}
                        log_q += weight * sum_of(log_probs(lambda: call(data, seen, None), new))  # noqa: B023
                else:
                    site, block = SITES[index], sampler.blocks[index]
                    others = {name: value for name, value in new.items() if name != site}
                    log_q_site = log_probs(lambda: block.proposal(data, others, None), new)[site]  # noqa: B023
                    own: Any = weight
                    if not whole and site != "sigma":
                        by_element = np.stack(
                            [softmax(event.log_weights + event.log_v[:, e]) for e in range(event.log_v.shape[1])]
                        )
                        own = by_element[:, particle]
                        if site == "mu":
                            factors |= {"mu": own, "x": own[new["c"]]}
                        else:
                            own = own[real]
                            factors |= {"c": own, "x": own}
                    log_q = jnp.sum(own * log_q_site)
                total -= log_q + sum(jnp.sum(factors[name] * log_p[name]) for name in log_p)
    return total / 2


def sum_of(values: dict[str, jax.Array]) -> jax.Array:
    return sum((jnp.sum(value) for value in values.values()), start=jnp.zeros(()))


def gradient_of(sampler: Sampler, batch: Data) -> Any:
    arrays, static = eqx.partition(sampler, eqx.is_inexact_array)

    @jax.jit
    def compiled(arrays: Any) -> Any:
        built = eqx.combine(arrays, static)
        return accumulate(built, keys(), batch, num_sweeps=NUM_SWEEPS, num_particles=NUM_PARTICLES)[0]

    return compiled(arrays)


def assert_same(found: Any, wanted: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
        assert np.any(np.abs(b) > 1e-3)


@pytest.fixture(scope="module")
def weighed(sampler: Sampler, batch: Data) -> Any:
    """The gradient of a model with arrays, every block weighed, by element where that is valid."""
    return gradient_of(variant(sampler, model=clusters_model()), batch)


@pytest.mark.parametrize(
    ("move", "whole"),
    [(pg.Weigh(), False), (pg.Weigh(), True), (pg.Metropolis(), False)],
    ids=["weigh", "weigh-whole", "metropolis"],
)
def test_accumulated_gradient_is_that_of_the_unrolled_loss(
    sampler: Sampler, batch: Data, weighed: Any, move: pg.Move, whole: bool
) -> None:
    chosen = variant(sampler, model=clusters_model(), move=move, whole=whole)
    events = record(chosen, batch)
    assert [index for index, _ in events] == [None, 0, 1, 2, 0, 1, 2]
    assert any(np.ptp(event.log_weights) > 0.1 for index, event in events if index is not None)
    arrays, static = eqx.partition(chosen, eqx.is_inexact_array)
    expected = jax.grad(by_hand)(arrays, static, batch, events, whole)
    plain = isinstance(move, pg.Weigh) and not whole
    assert_same((weighed if plain else gradient_of(chosen, batch)).arrays, expected)


def test_model_without_arrays_gives_proposals_the_same_gradient(sampler: Sampler, batch: Data, weighed: Any) -> None:
    found = gradient_of(sampler, batch)
    assert not jax.tree.leaves(found.arrays.model)
    assert_same(found.arrays.blocks, weighed.arrays.blocks)
    np.testing.assert_allclose(found.loss, weighed.loss, rtol=1e-4)


def test_weights_by_element_and_whole_weights_agree_in_the_limit_of_many_particles(sampler: Sampler, batch: Data) -> None:
    """Both are consistent for the same expectation, so their paired difference is Monte Carlo error."""
    row = jax.tree.map(lambda leaf: leaf[1:], batch)

    def estimates(sampler: Sampler) -> np.ndarray:
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
    """A proposal that reads the model's array, or else a number of the same value."""

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
