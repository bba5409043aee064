"""The exact conditional of finite sites as a proposal."""

from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import AnyConditional
from popgibbs.statistics import Categorical


class Enumerated(eqx.Module):
    """The exact conditional of finite sites, by enumeration of every joint value of each element's sites.

    At the initial step it is the conditional under the factors whose sites exist.
    """

    def draw(self, key: PRNGKey, conditional: AnyConditional) -> tuple[Values, Elements]:
        log_q = self._log_conditional(conditional)
        choice = jnp.asarray(Categorical(log_q).distribution().sample(key))
        chosen = jnp.take_along_axis(log_q, choice[:, None], axis=-1)[:, 0]
        values = {name: conditional.lay(column[choice], name) for name, column in self._columns(conditional).items()}
        return values, jnp.where(conditional.real, chosen, 0.0)

    def score(self, key: PRNGKey, conditional: AnyConditional, values: Values) -> Elements:
        log_q = self._log_conditional(conditional)
        chosen = jnp.ones(log_q.shape, bool)
        for name, column in self._columns(conditional).items():
            # A site has one value in each element, so summing into elements puts them in order.
            chosen &= conditional.reduce({name: values[name].astype(log_q.dtype)})[:, None] == column
        return jnp.where(conditional.real, jnp.sum(jnp.where(chosen, log_q, 0.0), axis=-1), 0.0)

    def log_sum(self, conditional: AnyConditional) -> Float[Array, ""]:
        """The block's factors with its sites summed out."""
        by_element = jax.nn.logsumexp(self._log_joint(conditional), axis=-1)
        return jnp.sum(jnp.where(conditional.real, by_element, 0.0))

    def _columns(self, conditional: AnyConditional) -> dict[str, Array]:
        """For each site, its value in every joint value of the block."""
        joint = zip(*product(*conditional.supports), strict=True)
        return {name: jnp.array(column) for name, column in zip(conditional.names, joint, strict=True)}

    def _log_conditional(self, conditional: AnyConditional) -> Float[Array, "element joint"]:
        log_joint = self._log_joint(conditional)
        # Where every value is impossible any will do: the particle has no weight.
        possible = jnp.max(log_joint, axis=-1, keepdims=True) != -jnp.inf
        return jax.nn.log_softmax(jnp.where(possible, log_joint, 0.0), axis=-1)

    def _log_joint(self, conditional: AnyConditional) -> Float[Array, "element joint"]:
        size = conditional.real.shape

        def log_density(values: Values) -> Elements:
            filled = {name: conditional.lay(jnp.broadcast_to(v, size), name) for name, v in values.items()}
            return conditional.reduce(conditional.log_probs(filled))

        return jax.vmap(log_density, out_axes=1)(self._columns(conditional))
