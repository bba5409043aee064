"""The model's own ancestral draw as a proposal."""

from dataclasses import dataclass
from typing import ClassVar

from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import Conditional, densities, evaluate
from popgibbs.proposals.base import BoundKernel, Kernel


class Prior(Kernel):
    """The model's own ancestral draw, q(z_b) = Π_{s∈b} p(s | parents).

    The factors of child sites enter only through the weight. A sampler whose blocks all use `Prior()` is a bootstrapped
    population Gibbs sampler.

    Examples:
        >>> block = pg.Block("mu", proposal=pg.Prior(), move=pg.Metropolis())
        >>> block.proposal
        Prior()
    """

    from_model: ClassVar[bool] = True
    needs_parents: ClassVar[bool] = True
    takes_any_key: ClassVar[bool] = True

    @property
    def summary(self) -> str:
        return "draw from the prior"

    def bind(self, key: PRNGKey, conditional: Conditional) -> BoundKernel:
        return BoundPrior(key, conditional)


@dataclass(frozen=True)
class BoundPrior(BoundKernel):
    """The model's draw under one key."""

    key: PRNGKey
    conditional: Conditional

    def draw(self) -> tuple[Values, Elements]:
        drawn, _ = evaluate(self.conditional.modelled, self.key, self.conditional.given)
        values = {name: drawn[name] for name in self.conditional.names}
        return values, self.score(values)

    def score(self, values: Values) -> Elements:
        conditional = self.conditional
        log_q = densities(conditional.modelled, self.key, {**conditional.given, **values}, conditional.names)
        return conditional.reduce_proposed(log_q)
