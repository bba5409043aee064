"""The context of a block: the instance, and the parts of the sampler that it needs."""

from dataclasses import dataclass

import equinox as eqx
import jax
from jaxtyping import Array

from popgibbs._random import standard, unrolled
from popgibbs._typing import PRNGKey, Resampler
from popgibbs.model import Partition, Summed, Target
from popgibbs.moves import MoveKeys
from popgibbs.smc.population import Population


@dataclass(frozen=True)
class Plan:
    """How a block updates its sites, as decided when the sampler is built."""

    partition: Partition  # how the weight of an update splits into elements
    first_partition: Partition  # how that of the first draw splits
    summed: Summed | None  # the sites that the block's move sums out
    proved: bool  # independence of elements is proved from the program, not only probed


class Context(eqx.Module):
    """The target of an instance, and how a block updates it."""

    target: Target
    index: int = eqx.field(static=True)  # the block's place in the sweep
    plan: Plan = eqx.field(static=True)
    resampler: Resampler = eqx.field(static=True)
    ess_threshold: float | Array = eqx.field(static=True)

    def resample(self, key: PRNGKey, population: Population) -> Population:
        return population.resample(key, self.resampler, self.ess_threshold)


def update_keys(key: PRNGKey, num_particles: int) -> tuple[PRNGKey, MoveKeys]:
    """A key for resampling, and the keys of every particle's move."""
    keys = standard(jax.random.split(unrolled(key), 1 + 2 * num_particles))  # resamplers, kernels and moves can be users'
    return keys[0], MoveKeys(draw=keys[1 : 1 + num_particles], accept=keys[1 + num_particles :])
