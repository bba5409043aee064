"""The model's own ancestral draw as a proposal."""

import equinox as eqx

from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import AnyConditional, densities, evaluate


class Prior(eqx.Module):
    """The model's own ancestral draw, q(z_b) = Π_{s∈b} p(s | parents): the factors of children enter the weight only."""

    def draw(self, key: PRNGKey, conditional: AnyConditional) -> tuple[Values, Elements]:
        drawn, _ = evaluate(conditional.modelled, key, conditional.given)
        values = {name: drawn[name] for name in conditional.names}
        return values, self.score(key, conditional, values)

    def score(self, key: PRNGKey, conditional: AnyConditional, values: Values) -> Elements:
        fixed = {**conditional.given, **values}
        return conditional.reduce_proposed(densities(conditional.modelled, key, fixed, conditional.names))
