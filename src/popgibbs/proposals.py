"""Proposal kernels: how the values of a block are drawn and scored.

Users write NumPyro programs; `Prior` and `Enumerated` are made from the model. All three do two things: draw values with
their log-probability, and score other values *under the same key*, hence under the same randomness inside the proposal.
"""

from itertools import product
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from popgibbs.families import Categorical
from popgibbs.program import densities, evaluate
from popgibbs.steps import AnyConditional
from popgibbs.typing import Elements, PRNGKey, Values


@runtime_checkable
class Kernel(Protocol):
    """A proposal as moves see it; log q comes by element of the block."""

    def draw(self, key: PRNGKey, conditional: AnyConditional) -> tuple[Values, Elements]: ...

    def score(self, key: PRNGKey, conditional: AnyConditional, values: Values) -> Elements: ...


class Programmed(eqx.Module):
    """A user's NumPyro program as a kernel."""

    program: Any

    def draw(self, key: PRNGKey, conditional: AnyConditional) -> tuple[Values, Elements]:
        values, log_q = evaluate(conditional.bind(self.program), key, conditional.given)
        return {name: values[name] for name in conditional.names}, conditional.reduce_proposed(log_q)

    def score(self, key: PRNGKey, conditional: AnyConditional, values: Values) -> Elements:
        _, log_q = evaluate(conditional.bind(self.program), key, {**conditional.given, **values})
        return conditional.reduce_proposed(log_q)


class Prior(eqx.Module):
    """The model's own ancestral draw, q(z_b) = Π_{s∈b} p(s | parents): the factors of children enter the weight only."""

    def draw(self, key: PRNGKey, conditional: AnyConditional) -> tuple[Values, Elements]:
        drawn, _ = evaluate(conditional.modelled, key, conditional.given)
        values = {name: drawn[name] for name in conditional.names}
        return values, self.score(key, conditional, values)

    def score(self, key: PRNGKey, conditional: AnyConditional, values: Values) -> Elements:
        fixed = {**conditional.given, **values}
        return conditional.reduce_proposed(densities(conditional.modelled, key, fixed, conditional.names))


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
        return jax.nn.log_softmax(self._log_joint(conditional), axis=-1)

    def _log_joint(self, conditional: AnyConditional) -> Float[Array, "element joint"]:
        size = conditional.real.shape

        def log_density(values: Values) -> Elements:
            filled = {name: conditional.lay(jnp.broadcast_to(v, size), name) for name, v in values.items()}
            return conditional.reduce(conditional.log_probs(filled))

        return jax.vmap(log_density, out_axes=1)(self._columns(conditional))


def as_kernel(proposal: Any) -> Any:
    """A user's program wrapped; `Prior()` and `Enumerated()` as they are."""
    return proposal if hasattr(proposal, "draw") and hasattr(proposal, "score") else Programmed(proposal)
