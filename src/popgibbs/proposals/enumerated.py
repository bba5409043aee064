"""The exact conditional of finite sites as a proposal."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from popgibbs._random import unrolled
from popgibbs._reuse import computed_once
from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import Conditional, JointValues
from popgibbs.proposals.base import BoundKernel, Kernel
from popgibbs.statistics import Categorical


class Enumerated(Kernel):
    """The exact conditional p(z_b | x, z_-b) of finite sites, by enumerating the joint values of each element's sites.

    The first draw uses only the factors whose sites exist at that point.

    Examples:
        >>> block = pg.Block("c", proposal=pg.Enumerated())
        >>> block.proposal
        Enumerated()
    """

    from_model: ClassVar[bool] = True
    needs_finite: ClassVar[bool] = True
    is_exact: ClassVar[bool] = True
    takes_any_key: ClassVar[bool] = True

    @property
    def summary(self) -> str:
        return "exact, by enumeration"

    def bind(self, key: PRNGKey, conditional: Conditional) -> "BoundEnumeration":
        return BoundEnumeration(key, conditional)


@dataclass(frozen=True)
class BoundEnumeration(BoundKernel):
    """All joint values of an element's sites, with their probabilities."""

    key: PRNGKey
    conditional: Conditional

    def draw(self) -> tuple[Values, Elements]:
        number = jnp.asarray(Categorical(self._log_q).distribution().sample(unrolled(self.key)))
        chosen = jnp.take_along_axis(self._log_q, number[:, None], axis=-1)[:, 0]
        return self._joint.at(number), jnp.where(self.conditional.real, chosen, 0.0)

    def score(self, values: Values) -> Elements:
        chosen = self._joint.number(values)[:, None] == jnp.arange(self._log_q.shape[1])
        return jnp.where(self.conditional.real, jnp.sum(jnp.where(chosen, self._log_q, 0.0), axis=-1), 0.0)

    def log_sum(self) -> Float[Array, ""]:
        """The block's factors with its sites summed out."""
        by_element = jax.nn.logsumexp(self._log_joint, axis=-1)
        return jnp.sum(jnp.where(self.conditional.real, by_element, 0.0))

    @computed_once
    def _joint(self) -> JointValues:
        return JointValues(self.conditional, self.conditional.names)

    @computed_once
    def _log_q(self) -> Float[Array, "element joint"]:
        # Where every value is impossible, the particle has no weight and any value will do.
        possible = jnp.max(self._log_joint, axis=-1, keepdims=True) != -jnp.inf
        return jax.nn.log_softmax(jnp.where(possible, self._log_joint, 0.0), axis=-1)

    @computed_once
    def _log_joint(self) -> Float[Array, "element joint"]:
        def log_density(number: Array) -> Elements:
            values = self._joint.at(jnp.broadcast_to(number, self.conditional.real.shape))
            return self.conditional.reduce(self.conditional.log_probs(values))

        return jax.vmap(log_density, out_axes=1)(jnp.arange(self._joint.count))
