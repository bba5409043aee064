"""A Gaussian at the mode of the model's own conditional as a proposal, which needs no training."""

from typing import ClassVar

import equinox as eqx
from jax.lax import stop_gradient

from popgibbs._typing import PRNGKey
from popgibbs.model import Conditional, Coordinates, Partition
from popgibbs.proposals.base import Gaussians, Kernel
from popgibbs.proposals.conjugate import Conjugate
from popgibbs.proposals.gaussian import BoundGaussian
from popgibbs.proposals.newton import mode_and_precision


class Laplace(Kernel):
    """A Gaussian around the mode of p(z_b | x, z_-b), found by Newton's method; it needs no training.

    Every element of the block gets its own Gaussian, in coordinates that NumPyro's bijections map to the sites' supports.
    A small share of draws is three times as wide, so that tails which are heavier than Gaussian are reached; use
    `Metropolis()` with it, or `Laplace(wide=0.0)` with `Reweight()`. The first draw uses only the factors whose sites
    exist at that point.

    Args:
        num_steps: Newton steps per update, each limited in length and shortened where it would lower the density.
        wide: The share of draws that are three times as wide.

    Examples:
        >>> block = pg.Block("mu", proposal=pg.Laplace(), move=pg.Metropolis())
        >>> sampler = pg.APG(model, data={"x": "points"}, blocks=[block], example=instances[0])
    """

    from_model: ClassVar[bool] = True
    takes_any_key: ClassVar[bool] = True

    num_steps: int = eqx.field(static=True, default=5)
    wide: float = eqx.field(static=True, default=0.1)

    @property
    def summary(self) -> str:
        return f"Laplace, {self.num_steps} Newton steps"

    def gaussians(self, names: tuple[str, ...], partition: Partition) -> Gaussians:
        return [(names, partition)]

    def together(self, num_elements: int) -> Kernel:
        """The kernel with the same share of wide draws in all elements together."""
        return Laplace(num_steps=self.num_steps, wide=self.wide / num_elements)

    def made_exact(self, family: str) -> Kernel:
        """The kernel for factors that have the form of an exponential family."""
        return Conjugate(family)

    def bind(self, key: PRNGKey, conditional: Conditional) -> "BoundGaussian":
        coordinates = Coordinates(conditional)  # pyright: ignore[reportArgumentType]
        loc, factor = stop_gradient(mode_and_precision(coordinates, self.num_steps))
        return BoundGaussian(key, coordinates, loc, factor, self.wide)
