"""One contender of one case, in a process of its own, which times steps when it is asked to."""

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

Made = tuple[Callable[[Any], Any], Any]  # a step and the state it starts from

BATCH, PARTICLES = 20, 10


def popgibbs_gmm_step() -> Made:
    """The paper's mixture sampler."""
    from popgibbs.experiments.gmm import GMM

    return _popgibbs(GMM, num_points=60, num_sweeps=4)


def popgibbs_dmm_step() -> Made:
    """The paper's deep-mixture sampler."""
    from popgibbs.experiments.dmm import DMM

    return _popgibbs(DMM, num_points=200, num_sweeps=7)


def _popgibbs(experiment: Any, num_points: int, num_sweeps: int) -> Made:
    """On one host device a core."""
    import os

    import jax

    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    import optax

    from popgibbs.instances import complete
    from popgibbs.training import Budget, Step, start

    apg = experiment.build("paper", jax.random.key(0))
    optimiser = optax.adam(2.5e-4)
    step = Step(apg.built, optimiser, Budget(num_particles=PARTICLES, num_sweeps=num_sweeps, batch_size=BATCH))
    batch = jax.vmap(lambda x: complete({"x": x}, apg.axes))(_batch(experiment, num_points))
    return lambda state: step(state, batch), start(apg.built, jax.random.key(2), optimiser)


def _batch(experiment: Any, num_points: int) -> Any:
    import jax

    keys = jax.random.split(jax.random.key(1), BATCH)
    return jax.vmap(lambda key: experiment.simulate(key, num_points)[0]["x"])(keys)


def coix_gmm_step() -> Made:
    """`coix.algo.apgs` as its authors give it."""
    return _coix_gmm(unrolled=False)


def coix_gmm_step_unrolled() -> Made:
    """The same combinators with the sweeps unrolled by hand."""
    return _coix_gmm(unrolled=True)


def coix_dmm_step() -> Made:
    """`coix.algo.apgs` as its authors give it."""
    return _coix_dmm(unrolled=False)


def coix_dmm_step_unrolled() -> Made:
    """The same combinators with the sweeps unrolled by hand."""
    return _coix_dmm(unrolled=True)


def _coix_gmm(unrolled: bool) -> Made:
    from benchmarks import peer_coix_gmm
    from popgibbs.experiments.gmm import GMM

    return _coix(peer_coix_gmm, _batch(GMM, 60), num_sweeps=4, unrolled=unrolled)


def _coix_dmm(unrolled: bool) -> Made:
    from benchmarks import peer_coix_dmm
    from popgibbs.experiments.dmm import DMM

    return _coix(peer_coix_dmm, _batch(DMM, 200), num_sweeps=7, unrolled=unrolled)


def _coix(peer: Any, x: Any, num_sweeps: int, unrolled: bool) -> Made:
    from functools import partial

    import jax

    from benchmarks.peer_coix import make_step

    params = peer.init_params(jax.random.key(0))
    parts = partial(peer.parts, PARTICLES)
    state, step = make_step(parts, params, batch_size=BATCH, num_sweeps=num_sweeps, unrolled=unrolled)
    key = jax.random.key(2)
    return lambda state: step(state, key, x), state


def serve(make: Callable[[], Made]) -> None:
    """Compile, then time as many steps as each line of the input asks for; answers are lines of JSON.

    The first step of a turn finds its threads asleep and its caches full of another's data, which no step of a training
    does; it is not counted.
    """
    import jax

    step, state = make()
    started = time.perf_counter()
    state, _ = jax.block_until_ready(step(state))
    print(json.dumps({"compile_seconds": time.perf_counter() - started}), flush=True)
    for line in sys.stdin:
        times = []
        state, _ = jax.block_until_ready(step(state))
        for _ in range(int(line)):
            started = time.perf_counter()
            state, _ = jax.block_until_ready(step(state))
            times.append(time.perf_counter() - started)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": statistics.median(times), "peak_mb": peak}), flush=True)


if __name__ == "__main__":
    serve(globals()[sys.argv[1]])
