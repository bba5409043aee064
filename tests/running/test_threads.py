"""Samplers in several threads: all share NumPyro's stack of handlers, so only one may trace at a time."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import popgibbs as pg

pytestmark = pytest.mark.usefixtures("quick_compilation")

NUM_THREADS = 8
KEY = jax.random.key(3)


def instances(size: int) -> list[dict[str, np.ndarray]]:
    return [{"x": np.random.default_rng(size).normal(size=size).astype(np.float32)}]


def sampler() -> pg.APG:
    """A sampler of new functions, for which nothing has been compiled."""

    def model(x):
        z = numpyro.sample("z", dist.Normal())
        with numpyro.plate("points", x.shape[0]):
            numpyro.sample("x", dist.Normal(z), obs=x)

    def proposal(data, latents, model):
        total, count = (data["x"] * data.mask["points"]).sum(), data.mask["points"].sum()
        numpyro.sample("z", dist.Normal(total / (1 + count), (1 + count) ** -0.5))

    return pg.APG(model, data={"x": "points"}, blocks=[pg.Block("z", proposal=proposal)])


def evidence(apg: pg.APG, size: int) -> float:
    """The evidence of the one instance of that size, which is exact because the proposal is the posterior."""
    return apg.sample(KEY, instances(size), num_sweeps=1, num_particles=2).log_evidence[0]


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    """The results of calls that start at the same time; an exception in one of them is raised here."""
    start, results = threading.Barrier(len(calls)), {}

    def run(index: int) -> None:
        start.wait()
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results.values():
        if isinstance(result, Exception):
            raise result
    return [results[index] for index in range(len(calls))]


def exact_evidence(size: int) -> float:
    (x,) = (instance["x"] for instance in instances(size))
    return stats.multivariate_normal(cov=np.eye(size) + 1).logpdf(x)


def test_threads_that_build_trace_and_train_at_once_get_exact_results():
    shared = sampler()

    def train() -> float:
        fit = sampler().fit(KEY, instances(3), num_steps=1, num_sweeps=0, batch_size=1, progress=False)
        return fit.history.metrics[-1]["log_evidence"]

    sizes = range(4, 3 + NUM_THREADS)
    trained, *sampled = in_threads([train, *(partial(evidence, shared, size) for size in sizes)])
    np.testing.assert_allclose([trained, *sampled], [exact_evidence(size) for size in (3, *sizes)], rtol=1e-4)
    assert sampled[-1] == evidence(sampler(), sizes[-1])  # as when nothing else runs
