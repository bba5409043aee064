"""Kernels: proposals as blocks and moves use them.

A kernel bound to a key and a conditional draws values with their log-probability, and scores other values *under the same
key*, hence with the same randomness inside the proposal.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from popgibbs._random import standard
from popgibbs._typing import Elements, LogProbs, PRNGKey, Values
from popgibbs.model import AbstractSite, Conditional, Partition

Gaussians = list[tuple[tuple[str, ...], Partition]]
"""Groups of sites that have one Gaussian per element of a partition, with a matrix of its size."""


class BoundKernel(ABC):
    """Abstract base of what `Kernel.bind` returns: a kernel at one key and one conditional.

    Work that drawing and scoring share belongs into the constructor, which runs once per update. An element is a part of
    the block with its own weight, such as one point of a plate; a block that is weighed as a whole has one element.

    Examples:
        >>> class BoundStandardNormal(pg.BoundKernel):
        ...     def __init__(self, key):
        ...         self.key = key
        ...     def draw(self):
        ...         values = {"mu": jax.random.normal(self.key)}
        ...         return values, self.score(values)
        ...     def score(self, values):
        ...         return dist.Normal(0.0, 1.0).log_prob(values["mu"])[None]
        >>> BoundStandardNormal(key).score({"mu": jnp.zeros(())})
        Array([-0.9189385], dtype=float32)
    """

    @abstractmethod
    def draw(self) -> tuple[Values, Elements]:
        """Draw values.

        Returns:
            The values of the block's sites by name, and their log q with axis (element,).
        """

    @abstractmethod
    def score(self, values: Values) -> Elements:
        """Score other values under the same key.

        Args:
            values: Values of the block's sites, by name.

        Returns:
            Their log q with axis (element,).
        """

    def log_probs(self, values: Values) -> LogProbs | None:
        """log q of other values by site, unsummed, from which elements can be proved independent; None if unknown."""
        return None

    def covers(self, values: Values) -> dict[str, Array]:
        """For each site, whether the kernel could have drawn its value."""
        possible = jnp.all(self.score(values) > -jnp.inf)
        return dict.fromkeys(values, possible)


class Kernel(eqx.Module):
    """Abstract base of proposals that are not NumPyro programs but draw and score values themselves.

    Subclasses define `bind`. A sampler checks its kernels when it is built, as it checks programs: they must draw the
    block's sites with the model's shapes, inside the model's support, reach all of that support, and not change when
    instances are padded.

    Examples:
        >>> class BoundStandardNormal(pg.BoundKernel):
        ...     def __init__(self, key):
        ...         self.key = key
        ...     def draw(self):
        ...         values = {"mu": jax.random.normal(self.key)}
        ...         return values, self.score(values)
        ...     def score(self, values):
        ...         return dist.Normal(0.0, 1.0).log_prob(values["mu"])[None]
        >>> class StandardNormal(pg.Kernel):
        ...     def bind(self, key, conditional):
        ...         return BoundStandardNormal(key)
        >>> block = pg.Block("mu", proposal=StandardNormal(), move=pg.Metropolis())
        >>> sampler = pg.APG(model, data={"x": "points"}, blocks=[block], example=instances[0])
    """

    from_model: ClassVar[bool] = False  # built from the model's own factors, so that these properties need no check
    needs_parents: ClassVar[bool] = False  # the first draw needs the parents of its sites
    needs_finite: ClassVar[bool] = False  # every site must be finite
    needs_count: ClassVar[bool] = False  # the block must have one discrete site, with one integer in each element
    takes_any_key: ClassVar[bool] = False  # also keys of generators other than JAX's default, which compile faster
    splits: ClassVar[bool] = True  # log q may split into elements of a plate
    is_learned: ClassVar[bool] = False  # `prepared` makes its networks
    is_exact: ClassVar[bool] = False  # draws from the conditional itself, so that no draw is impossible

    @property
    def draws_from_many(self) -> bool:
        """Whether a key chooses one of many proposals, which reach different modes."""
        return False

    @property
    def summary(self) -> str:
        """What the kernel does, in a few words, for `APG.describe`; by default the name of its class."""
        return type(self).__name__

    @abstractmethod
    def bind(self, key: PRNGKey, conditional: Conditional) -> BoundKernel:
        """Bind the kernel to a key and a conditional.

        Args:
            key: The random key under which the kernel draws and scores.
            conditional: p(z_b | x, z_-b): `conditional.names` are the block's sites, `conditional.given` the values of
                the others, and `conditional.log_probs(values)` the factors that contain the block's sites.

        Returns:
            The bound kernel.
        """

    def gaussians(self, names: tuple[str, ...], partition: Partition) -> Gaussians:
        """The Gaussians with which it draws the named sites of a block, whose weight splits by a partition."""
        del names, partition
        return []

    def with_one_value(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of a block's sites that must have one value in each element; by default none."""
        del names
        return ()

    def together(self, num_elements: int) -> "Kernel":
        """The kernel for elements of which so many are accepted all or none; by default the kernel itself."""
        del num_elements
        return self

    def with_search(self) -> "Kernel":
        """The kernel for elements of one number whose modes have to be searched for; by default the kernel itself."""
        return self

    @property
    def searches(self) -> bool:
        """Whether it searches for modes, because an element may have several."""
        return False

    def made_exact(self, family: str) -> "Kernel":
        """The kernel for factors that together have the form of an exponential family; by default the kernel itself."""
        del family
        return self

    def inputs(self, conditional: Conditional) -> tuple[Any, Any]:
        """What `prepared` needs to know of a conditional: arrays, and facts that are not arrays."""
        del conditional
        return None, None

    def prepared(self, key: PRNGKey, update: tuple[Any, Any], first: tuple[Any, Any] | None) -> "Kernel":
        """The kernel with networks that fit the model, when a sampler is built; by default the kernel itself.

        `update` and `first` are the `inputs` of updates and of the first draw, if the block makes one. Their arrays are
        at draws from the model, with a leading axis.
        """
        del key, update, first
        return self

    def sites(self, conditional: Conditional) -> dict[str, AbstractSite]:
        """The sites that the kernel samples for a conditional, found by tracing."""
        values, _ = jax.eval_shape(lambda: self.bind(jax.random.key(0), conditional).draw())
        return {name: _abstract(value) for name, value in values.items()}


def key_for(kernel: Kernel, key: PRNGKey) -> PRNGKey:
    """A key that the kernel takes."""
    return key if kernel.takes_any_key else standard(key)


def sites_at(bound: Callable[..., tuple[Kernel, Conditional]], *inputs: Any) -> dict[str, AbstractSite]:
    """The sites that a kernel samples for a conditional, both made from abstract inputs."""
    found: dict[str, AbstractSite] = {}

    def traced(*inputs: Any) -> None:
        kernel, conditional = bound(*inputs)
        found.update(kernel.sites(conditional))

    jax.eval_shape(traced, *inputs)
    return found


def _abstract(value: Any) -> AbstractSite:
    discrete = not jnp.issubdtype(value.dtype, jnp.inexact)
    return AbstractSite(value, batch_shape=None, observed=False, discrete=discrete, altered=False)
