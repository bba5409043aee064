"""The conditional of a block that moves other sites along, because it holds their standardised values.

With α = T_ψ(η), where T_ψ multiplies by the scale of p(α | ψ) and adds its location,

    p(ψ | x, η, z_-b) ∝ p(x, ψ, α = T_ψ(η), z_-b) |∂α/∂η|.
"""

import jax.numpy as jnp
from jaxtyping import Array

from popgibbs._typing import Elements, LogProbs, Values
from popgibbs.model.conditionals import BlockConditional
from popgibbs.model.program import rescale, standardise


class NonCentredConditional(BlockConditional):
    """p(ψ | x, η, z_-b) up to its constant, where `given` has neither the block's sites ψ nor those that move along."""

    standardised: Values  # η

    @property
    def updated(self) -> tuple[str, ...]:
        return (*self.names, *self.standardised)

    def moved_along(self, values: Values) -> Values:
        """The sites that move along with other values of the block's sites."""
        return self._rescaled(values)[0]

    def log_stretch(self, values: Values) -> Elements:
        """log |∂α/∂η| of each element."""
        return self.reduce(self.mask(self._rescaled(values)[1]))

    def log_probs(self, values: Values) -> LogProbs:
        moved, stretches = self._rescaled(values)
        log_probs = super().log_probs({**values, **moved})
        return log_probs | {name: log_probs[name] + stretch for name, stretch in self.mask(stretches).items()}

    def _rescaled(self, values: Values) -> tuple[Values, LogProbs]:
        return rescale(self.modelled, {**self.given, **values}, self.standardised)


def non_centred(conditional: BlockConditional, latents: Values, names: tuple[str, ...]) -> NonCentredConditional:
    """The conditional of the named sites of a block, whose other sites move along with their η held."""
    others = tuple(name for name in conditional.names if name not in names)

    def real(name: str, value: Array) -> Array:
        """Zero at padded elements, where a location or a scale may be anything."""
        is_real = conditional.is_real(name, latents[name])
        return jnp.where(is_real.reshape(is_real.shape + (1,) * (value.ndim - is_real.ndim)), value, 0.0)

    standardised = standardise(conditional.modelled, latents, others)
    return NonCentredConditional(
        conditional.target,
        conditional.partition,
        names=names,
        given=conditional.given,
        standardised={name: real(name, value) for name, value in standardised.items()},
    )
