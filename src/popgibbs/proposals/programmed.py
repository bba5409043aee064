"""Proposals that users write as NumPyro programs."""

from typing import Any

import equinox as eqx

from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import AnyConditional, evaluate


class Programmed(eqx.Module):
    """A user's NumPyro program as a kernel."""

    program: Any

    def draw(self, key: PRNGKey, conditional: AnyConditional) -> tuple[Values, Elements]:
        values, log_q = evaluate(conditional.bind(self.program), key, conditional.given)
        return {name: values[name] for name in conditional.names}, conditional.reduce_proposed(log_q)

    def score(self, key: PRNGKey, conditional: AnyConditional, values: Values) -> Elements:
        _, log_q = evaluate(conditional.bind(self.program), key, {**conditional.given, **values})
        return conditional.reduce_proposed(log_q)


def as_kernel(proposal: Any) -> Any:
    """A user's program wrapped; `Prior()` and `Enumerated()` as they are."""
    return proposal if hasattr(proposal, "draw") and hasattr(proposal, "score") else Programmed(proposal)
