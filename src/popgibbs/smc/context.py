"""What a block knows about the sampler and the instance it works on."""

from dataclasses import dataclass

import equinox as eqx
import jax
from jaxtyping import Array

from popgibbs._typing import PRNGKey, Resampler
from popgibbs.model import Partition, Summed, Target
from popgibbs.moves import MoveKeys
from popgibbs.smc.population import Population


@dataclass(frozen=True)
class Plan:
    """How a block works on its model, as found when the sampler is built."""

    partition: Partition  # how the weight of an update splits into elements
    first_partition: Partition  # how the first draw does
    summed: Summed | None  # the sites that the block's move sums out
    proved: bool  # the program itself shows that elements are independent; else they were only probed


class Context(eqx.Module):
    """An instance's target, and how a block works on it."""

    target: Target
    index: int = eqx.field(static=True)  # the block's place in the sweep
    plan: Plan = eqx.field(static=True)
    resampler: Resampler = eqx.field(static=True)
    ess_threshold: float | Array = eqx.field(static=True)

    def resample(self, key: PRNGKey, population: Population) -> Population:
        return population.resample(key, self.resampler, self.ess_threshold)


def update_keys(key: PRNGKey, num_particles: int) -> tuple[PRNGKey, MoveKeys]:
    """A key to resample with, and every particle's keys to move with."""
    keys = jax.random.split(key, 1 + 2 * num_particles)
    return keys[0], MoveKeys(draw=keys[1 : 1 + num_particles], accept=keys[1 + num_particles :])
