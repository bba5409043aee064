"""A proposal for some sites of a block that moves its other sites along."""

from popgibbs._typing import Elements, Values
from popgibbs.model import NonCentredConditional
from popgibbs.proposals.base import BoundKernel


class MovesAlong(BoundKernel):
    """A kernel of ψ given η as one of (ψ, α): its log q is a density of α, hence the volume |∂α/∂η|."""

    def __init__(self, inner: BoundKernel, conditional: NonCentredConditional):
        self.inner, self.conditional = inner, conditional

    def draw(self) -> tuple[Values, Elements]:
        values, log_q = self.inner.draw()
        return {**values, **self.conditional.moved_along(values)}, log_q - self.conditional.log_stretch(values)

    def score(self, values: Values) -> Elements:
        own = {name: values[name] for name in self.conditional.names}
        return self.inner.score(own) - self.conditional.log_stretch(own)
