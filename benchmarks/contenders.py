"""One contender of one case, in its own process, which times steps on request."""

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

Made = tuple[Callable[[Any], Any], Any]  # a step and its initial state

PARTICLES = 10
PLANE, VIDEOS = 20, 5  # instances per batch
VIDEO_SWEEPS = 4  # the paper's K=5, for which coix compiles for minutes and needs many gigabytes
LONG_STEP = 5.0  # seconds, compared with which cold caches at the first step of a turn are negligible


def popgibbs_gmm_step() -> Made:
    """The paper's mixture sampler."""
    from popgibbs.paper.gmm import GMM

    return _popgibbs(GMM, PLANE, size={"points": 60}, num_sweeps=4)


def popgibbs_dmm_step() -> Made:
    """The paper's deep-mixture sampler."""
    from popgibbs.paper.dmm import DMM

    return _popgibbs(DMM, PLANE, size={"points": 200}, num_sweeps=7, microbatch_size=5)


def popgibbs_bmnist_step() -> Made:
    """The paper's sampler of bouncing digits."""
    from popgibbs.paper.bmnist import BMNIST

    return _popgibbs(BMNIST, VIDEOS, size={"digits": 3, "frames": 10}, num_sweeps=VIDEO_SWEEPS, microbatch_size=1)


def popgibbs_bmnist_step_of_twice_the_frames() -> Made:
    """The same with 20 frames."""
    from popgibbs.paper.bmnist import BMNIST

    return _popgibbs(BMNIST, VIDEOS, size={"digits": 3, "frames": 20}, num_sweeps=VIDEO_SWEEPS, microbatch_size=1)


def _popgibbs(
    experiment: Any, batch_size: int, size: dict[str, int], num_sweeps: int, microbatch_size: int | None = None
) -> Made:
    """A training step of popgibbs, with one host device per core."""
    import os

    import jax

    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    import optax

    from popgibbs.data import complete
    from popgibbs.training import Budget, TrainingStep, start

    apg = experiment.build("paper", jax.random.key(0), size)
    optimiser = optax.adam(2.5e-4)
    budget = Budget(
        num_particles=PARTICLES, num_sweeps=num_sweeps, batch_size=batch_size, microbatch_size=microbatch_size
    )
    step = TrainingStep(apg.built, optimiser, budget)
    batch = jax.vmap(lambda instance: complete(instance, apg.axes))(_batch(experiment, batch_size, size))
    return lambda state: step(state, batch), start(apg.built, jax.random.key(2), optimiser)


def _batch(experiment: Any, batch_size: int, size: dict[str, int]) -> Any:
    import jax

    keys = jax.random.split(jax.random.key(1), batch_size)
    return jax.vmap(lambda key: experiment.simulate(key, **size)[0])(keys)


def coix_gmm_step() -> Made:
    """`coix.algo.apgs` as published."""
    return _coix_gmm(unrolled=False)


def coix_gmm_step_unrolled() -> Made:
    """The same combinators with the sweeps unrolled by hand."""
    return _coix_gmm(unrolled=True)


def coix_dmm_step() -> Made:
    """`coix.algo.apgs` as published."""
    return _coix_dmm(unrolled=False)


def coix_dmm_step_unrolled() -> Made:
    """The same combinators with the sweeps unrolled by hand."""
    return _coix_dmm(unrolled=True)


def _coix_gmm(unrolled: bool) -> Made:
    from benchmarks import peer_coix_gmm
    from popgibbs.paper.gmm import GMM

    x = _batch(GMM, PLANE, {"points": 60})["x"]
    return _coix(partial(peer_coix_gmm.parts, PARTICLES), peer_coix_gmm, x, num_sweeps=4, unrolled=unrolled)


def _coix_dmm(unrolled: bool) -> Made:
    from benchmarks import peer_coix_dmm
    from popgibbs.paper.dmm import DMM

    x = _batch(DMM, PLANE, {"points": 200})["x"]
    return _coix(partial(peer_coix_dmm.parts, PARTICLES), peer_coix_dmm, x, num_sweeps=7, unrolled=unrolled)


def coix_bmnist_step() -> Made:
    """`coix.algo.apgs` with the image operations that JAX offers."""
    return _coix_bmnist(own_images=False)


def coix_bmnist_step_with_our_images() -> Made:
    """`coix.algo.apgs` with the image operations of popgibbs."""
    return _coix_bmnist(own_images=True)


def _coix_bmnist(own_images: bool) -> Made:
    from benchmarks import peer_coix_bmnist
    from popgibbs.paper.bmnist import BMNIST

    frames = 10
    x = _batch(BMNIST, VIDEOS, {"digits": peer_coix_bmnist.NUM_DIGITS, "frames": frames})["frames"]
    parts = partial(peer_coix_bmnist.parts, PARTICLES, frames, own_images)
    return _coix(parts, peer_coix_bmnist, x, num_sweeps=VIDEO_SWEEPS)


def _coix(parts: Any, peer: Any, x: Any, num_sweeps: int, unrolled: bool = False) -> Made:
    import jax

    from benchmarks.peer_coix import make_step

    params = peer.init_params(jax.random.key(0))
    state, step = make_step(parts, params, batch_size=x.shape[0], num_sweeps=num_sweeps, unrolled=unrolled)
    key = jax.random.key(2)
    return lambda state: step(state, key, x), state


def serve(make: Callable[[], Made]) -> None:
    """Compile, then time as many steps as each input line requests; the answers are lines of JSON.

    The first step of a turn starts with sleeping threads and cold caches, unlike the steps of a training run. It is not
    counted, unless steps are so long that this is negligible.
    """
    import jax

    step, state = make()

    def timed() -> float:
        nonlocal state
        started = time.perf_counter()
        state, _ = jax.block_until_ready(step(state))
        return time.perf_counter() - started

    print(json.dumps({"compile_seconds": timed()}), flush=True)
    for line in sys.stdin:
        first, left = timed(), int(line)
        times = [first] * (first > LONG_STEP)
        times += [timed() for _ in range(left - len(times))]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": statistics.median(times), "peak_mb": peak}), flush=True)


if __name__ == "__main__":
    serve(globals()[sys.argv[1]])
