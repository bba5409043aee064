"""A Gaussian at the mode of the model's own conditional as a proposal, which needs no training."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient

from popgibbs._arguments import whole_number
from popgibbs._typing import Elements, PRNGKey
from popgibbs.model import BlockConditional, Conditional, Coordinates, Partition
from popgibbs.proposals.base import BoundKernel, Gaussians, Kernel
from popgibbs.proposals.conjugate import Conjugate
from popgibbs.proposals.gaussian import BoundGaussian
from popgibbs.proposals.modes import BoundModes, modes_of
from popgibbs.proposals.newton import mode_and_precision

_STARTS = 16  # places, where modes have to be searched for


class Laplace(Kernel):
    """A Gaussian around the mode of p(z_b | x, z_-b), found by Newton's method; it needs no training.

    Every element of the block gets its own Gaussian, in coordinates that NumPyro's bijections map to the sites' supports.
    A small share of draws is three times as wide, so that tails which are heavier than Gaussian are reached. Its move is
    `Metropolis()` by default; with `Reweight()` use `Laplace(wide=0.0)`. The first draw uses only the factors whose sites
    exist at that point.

    Args:
        num_steps: The most Newton steps per update; each is limited in length, and shortened where it would lower the
            density.
        wide: The share of draws that are three times as wide.
        starts: For elements of one number: at how many quantiles of the prior the density is looked at. Searches begin
            at up to three local maxima, and the proposal is a mixture of Gaussians. With 0, Newton's method begins at
            the prior's centre.
        bijections: For sites whose family should not be that of NumPyro's bijection for their support, such as log-normal
            for positive ones: a NumPyro transform from the reals to the support, by site.

    Examples:
        >>> block = pg.Block("mu", proposal=pg.Laplace(), move=pg.Metropolis())
        >>> sampler = pg.APG(model, data={"x": "points"}, blocks=[block], example=instances[0])
    """

    takes_any_key: ClassVar[bool] = True

    num_steps: int = eqx.field(static=True, default=10)
    wide: float = eqx.field(static=True, default=0.1)
    starts: int = eqx.field(static=True, default=0)
    bijections: Mapping[str, Any] = eqx.field(default_factory=dict)

    def __check_init__(self) -> None:
        whole_number("num_steps", self.num_steps, 0)
        whole_number("starts", self.starts, 0)
        if not 0 <= self.wide < 1:
            raise ValueError(f"wide={self.wide} is a share of the draws; choose it between 0 and 1")

    @property
    def summary(self) -> str:
        return "Laplace at several modes" if self.starts else "Laplace"

    @property
    def from_model(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return not self.bijections  # whether they reach all of a support has to be checked

    def gaussians(self, names: tuple[str, ...], partition: Partition) -> Gaussians:
        return [(names, partition)]

    def together(self, num_elements: int) -> Kernel:
        """The kernel with the same share of wide draws in all elements together."""
        return replace(self, wide=self.wide / num_elements)

    def with_search(self) -> "Laplace":
        """The kernel for elements of one number whose mode Newton's method misses, or which have several."""
        return replace(self, starts=_STARTS)

    @property
    def searches(self) -> bool:
        return self.starts > 0

    def made_exact(self, family: str) -> Kernel:
        """The kernel for factors that have the form of an exponential family."""
        return Conjugate(family)

    def bind(self, key: PRNGKey, conditional: Conditional) -> BoundKernel:
        coordinates = self.coordinates(conditional)  # pyright: ignore[reportArgumentType]
        return self.bound(key, coordinates, stop_gradient(self.fit(coordinates)))

    def coordinates(self, conditional: BlockConditional) -> Coordinates:
        """The block's sites on the real line."""
        return Coordinates(conditional, self.bijections)

    def fit(self, coordinates: Coordinates) -> Any:
        """The modes and what is around them, with elements as the leading axis of all arrays."""
        if self.starts:
            return modes_of(coordinates, self.starts)
        return mode_and_precision(coordinates, self.num_steps)

    def log_mass(self, coordinates: Coordinates, fit: Any) -> Elements:
        """The logarithm of the integral of each element's factors over the block's sites, by Laplace's method."""
        if self.starts:
            return fit.log_total
        loc, factor = fit
        log_slope = jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)
        return coordinates.log_density(loc) - log_slope + 0.5 * coordinates.size * jnp.log(2 * jnp.pi)

    def bound(self, key: PRNGKey, coordinates: Coordinates, fit: Any) -> BoundKernel:
        """The proposal around a fit."""
        if self.starts:
            return BoundModes(key, coordinates, fit, self.wide)
        loc, factor = fit
        return BoundGaussian(key, coordinates, loc, factor, self.wide)
