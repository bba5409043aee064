"""A proposal for sites and the sites below them: a Gaussian for the former with the latter integrated out, then these.

    q(ψ) = Normal at the mode of  log p(ψ, α̂(ψ)) − ½ log |H(ψ)|,    q(ψ, α) = q(ψ) q(α | ψ)

α̂(ψ) is the mode of α given ψ, and H(ψ) the curvature there: Laplace's approximation of ∫ p(ψ, α) dα (Tierney and
Kadane, 1986). A joint Gaussian could not follow a funnel, and jointly with the sites that it scales, a scale has no mode.
"""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from popgibbs._random import unrolled
from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import BlockConditional, Conditional, Coordinates, Partition, by_name, shared_plates, touched
from popgibbs.proposals.base import BoundKernel, Gaussians, Kernel
from popgibbs.proposals.gaussian import BoundGaussian
from popgibbs.proposals.newton import mode_and_precision
from popgibbs.proposals.search import mode_by_values

_STEPS = 5  # of Newton's method for the sites below


class NestedLaplace(Kernel):
    """A Gaussian for the upper sites of a block, with the lower ones, if any, integrated out; then the lower sites."""

    from_model: ClassVar[bool] = True
    takes_any_key: ClassVar[bool] = True

    upper: tuple[str, ...] = eqx.field(static=True)
    lower: Kernel | None
    wide: float = eqx.field(static=True, default=0.1)

    @property
    def summary(self) -> str:
        return f"Laplace for {', '.join(self.upper)}, then {self.lower.summary}" if self.lower else "Laplace"

    def gaussians(self, names: tuple[str, ...], partition: Partition) -> Gaussians:
        below = tuple(name for name in names if name not in self.upper)
        lower = self.lower.gaussians(below, lower_partition(below, partition)) if self.lower else []
        return [(self.upper, partition), *lower]

    def bind(self, key: PRNGKey, conditional: Conditional) -> BoundKernel:
        assert isinstance(conditional, BlockConditional)
        return BoundNested(key, conditional, self)


class BoundNested(BoundKernel):
    """The proposal at one state of the other sites."""

    def __init__(self, key: PRNGKey, conditional: BlockConditional, kernel: NestedLaplace):
        key_upper, self.key_lower = jax.random.split(unrolled(key))
        self.conditional, self.kernel = conditional, kernel
        target, partition = conditional.target, conditional.partition
        self.names = tuple(name for name in conditional.names if name not in kernel.upper)
        self.partition = lower_partition(self.names, partition) if self.names else partition
        own = BlockConditional(  # for its coordinates, and without lower sites also for its factors
            target, partition, names=kernel.upper, given=conditional.given, initial=conditional.initial
        )
        coordinates = Coordinates(own)
        begin = jnp.zeros((coordinates.num_elements, coordinates.size))
        found = stop_gradient(mode_by_values(self._log_density(coordinates), begin, jnp.ones_like(begin)))
        self.upper = BoundGaussian(key_upper, coordinates, found.position, found.factor, kernel.wide)

    def draw(self) -> tuple[Values, Elements]:
        upper, log_q_upper = self.upper.draw()
        if not self.names:
            return upper, log_q_upper
        lower, log_q_lower = self._bound_lower(upper).draw()
        return {**upper, **lower}, log_q_upper + self._outward(log_q_lower)

    def score(self, values: Values) -> Elements:
        upper = {name: values[name] for name in self.kernel.upper}
        if not self.names:
            return self.upper.score(upper)
        lower = {name: values[name] for name in self.names}
        return self.upper.score(upper) + self._outward(self._bound_lower(upper).score(lower))

    def _bound_lower(self, upper: Values) -> BoundKernel:
        assert self.kernel.lower is not None
        return self.kernel.lower.bind(self.key_lower, self._below(upper))

    def _below(self, upper: Values) -> BlockConditional:
        """The conditional of the lower sites."""
        given = {**self.conditional.given, **upper}
        return BlockConditional(
            self.conditional.target, self.partition, names=self.names, given=given, initial=self.conditional.initial
        )

    def _log_density(self, coordinates: Coordinates) -> Callable[[Array], Elements]:
        """The density of positions of the upper sites, with the lower ones integrated out, up to a constant."""

        def at(position: Float[Array, "element axis"]) -> Elements:
            if not self.names:
                return coordinates.log_density(position)
            upper = coordinates.values(position)
            below = Coordinates(self._below(upper))
            loc, factor = mode_and_precision(below, _STEPS)
            joint = self.conditional.log_probs({**upper, **below.values(loc)})
            volume = below.log_volume(loc) - jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)
            volume = jnp.where(below.conditional.real, volume, 0.0)
            return self.conditional.reduce(joint) + coordinates.log_volume(position) + self._outward(volume)

        return at

    def _outward(self, elements: Float[Array, " lower_element"]) -> Elements:
        """Numbers by element of the lower sites, summed into the block's elements."""
        if self.partition == self.conditional.partition:
            return elements
        plates, kept = self.partition.plates, self.conditional.partition.plates
        shaped = elements.reshape(self.partition.shape(self.conditional.target.plate_sizes))
        others = tuple(axis for axis, plate in enumerate(plates) if plate not in kept)
        left = [plate for plate in plates if plate in kept]
        return jnp.transpose(jnp.sum(shaped, axis=others), [left.index(plate) for plate in kept]).reshape(-1)


def lower_partition(names: tuple[str, ...], block: Partition) -> Partition:
    """The finest split of the lower sites that the plates suggest, given the upper ones."""
    if block.assigned_by is not None:
        return block
    sites = by_name(block.sites)
    return Partition(block.sites, shared_plates([sites[name] for name in (*names, *touched(block.sites, names))]))
