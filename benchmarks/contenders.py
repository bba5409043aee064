"""One contender of one case, in a process of its own, which times steps when it is asked to."""

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any


def popgibbs_gmm_step() -> tuple[Callable[[Any], Any], Any]:
    """The paper's mixture sampler on one host device a core."""
    import os

    import jax

    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    import optax

    from popgibbs.experiments.gmm import GMM
    from popgibbs.instances import complete
    from popgibbs.training import Budget, Step, start

    apg = GMM.build("paper", jax.random.key(0))
    optimiser = optax.adam(2.5e-4)
    step = Step(apg.built, optimiser, Budget(num_particles=10, num_sweeps=4, batch_size=20))
    batch = jax.vmap(lambda key: complete(GMM.simulate(key, 60)[0], apg.axes))(jax.random.split(jax.random.key(1), 20))
    return lambda state: step(state, batch), start(apg.built, jax.random.key(2), optimiser)


def _coix(unrolled: bool) -> tuple[Callable[[Any], Any], Any]:
    import jax

    from benchmarks import peer_coix_gmm as peer
    from popgibbs.experiments.gmm import GMM

    x = jax.vmap(lambda key: GMM.simulate(key, 60)[0]["x"])(jax.random.split(jax.random.key(1), 20))
    make = peer.make_unrolled_step if unrolled else peer.make_step
    state, step = make(batch_size=20, num_points=60, num_particles=10, num_sweeps=4)
    key = jax.random.key(2)
    return lambda state: step(state, key, x), state


def coix_gmm_step() -> tuple[Callable[[Any], Any], Any]:
    """`coix.algo.apgs` as its authors give it."""
    return _coix(unrolled=False)


def coix_gmm_step_unrolled() -> tuple[Callable[[Any], Any], Any]:
    """The same combinators with the sweeps unrolled by hand."""
    return _coix(unrolled=True)


def serve(make: Callable[[], tuple[Callable[[Any], Any], Any]]) -> None:
    """Compile, then time as many steps as each line of the input asks for; answers are lines of JSON."""
    import jax

    step, state = make()
    started = time.perf_counter()
    state, _ = jax.block_until_ready(step(state))
    print(json.dumps({"compile_seconds": time.perf_counter() - started}), flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            started = time.perf_counter()
            state, _ = jax.block_until_ready(step(state))
            times.append(time.perf_counter() - started)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": statistics.median(times), "peak_mb": peak}), flush=True)


if __name__ == "__main__":
    serve(globals()[sys.argv[1]])
