"""What a proposal is to blocks and moves: a kernel, bound to a key and a conditional, that draws and scores.

It draws values with their log-probability, and scores other values *under the same key*, hence under the same randomness
inside the proposal.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from popgibbs._typing import Elements, LogProbs, PRNGKey, Values
from popgibbs.model import AbstractSite, Conditional


class BoundKernel(ABC):
    """A kernel at one key and one conditional. Whatever drawing and scoring share is computed once, when it is bound."""

    @abstractmethod
    def draw(self) -> tuple[Values, Elements]:
        """Values of the block's sites, and their log q by element of the block."""

    @abstractmethod
    def score(self, values: Values) -> Elements:
        """log q of other values, by element of the block."""

    def log_probs(self, values: Values) -> LogProbs | None:
        """log q of other values by site, unsummed, where the kernel has it: it may prove elements independent."""
        return None

    def covers(self, values: Values) -> dict[str, Array]:
        """For each site, whether the kernel could have drawn its value."""
        possible = jnp.all(self.score(values) > -jnp.inf)
        return dict.fromkeys(values, possible)


class Kernel(eqx.Module):
    """A proposal that is not a NumPyro program: it says itself how it draws and scores.

    Subclasses define `bind`. Every kernel is checked when a sampler is built, as programs are: it draws its block's
    sites with the model's shapes, inside the model's support, reaches all of that support, and padding changes nothing.
    """

    from_model: ClassVar[bool] = False  # built from the model's own factors, so that these properties need no check
    needs_parents: ClassVar[bool] = False  # the first draw needs the parents of its sites
    needs_finite: ClassVar[bool] = False  # every site has finitely many values, one of them in each element
    is_exact: ClassVar[bool] = False  # draws from the conditional itself, so that no draw is impossible

    @abstractmethod
    def bind(self, key: PRNGKey, conditional: Conditional) -> BoundKernel:
        """The kernel at one key and one conditional."""

    def sites(self, conditional: Conditional) -> dict[str, AbstractSite]:
        """What the kernel samples for a conditional, by tracing alone."""
        values, _ = jax.eval_shape(lambda: self.bind(jax.random.key(0), conditional).draw())
        return {name: _abstract(value) for name, value in values.items()}


def sites_at(bound: Callable[..., tuple[Kernel, Conditional]], *inputs: Any) -> dict[str, AbstractSite]:
    """What a kernel samples for a conditional, both made from abstract inputs."""
    found: dict[str, AbstractSite] = {}

    def traced(*inputs: Any) -> None:
        kernel, conditional = bound(*inputs)
        found.update(kernel.sites(conditional))

    jax.eval_shape(traced, *inputs)
    return found


def _abstract(value: Any) -> AbstractSite:
    discrete = not jnp.issubdtype(value.dtype, jnp.inexact)
    return AbstractSite(value, batch_shape=None, observed=False, discrete=discrete, altered=False)
