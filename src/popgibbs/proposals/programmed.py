"""Proposals that users write as NumPyro programs."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from popgibbs._typing import Elements, LogProbs, PRNGKey, Values
from popgibbs.model import AbstractSite, Conditional, Program, abstract_sites, evaluate, raw_sites
from popgibbs.proposals.base import BoundKernel, Kernel


class Programmed(Kernel):
    """A user's NumPyro program as a kernel."""

    takes_any_key: ClassVar[bool] = True

    program: Any

    @property
    def summary(self) -> str:
        return f"program {getattr(self.program, '__name__', type(self.program).__name__)}"

    def bind(self, key: PRNGKey, conditional: Conditional) -> BoundKernel:
        return BoundProgram(conditional.bind(self.program), key, conditional)

    def sites(self, conditional: Conditional) -> dict[str, AbstractSite]:
        return abstract_sites(lambda given: conditional.bind(self.program), conditional.given)


@dataclass(frozen=True)
class BoundProgram(BoundKernel):
    """A program without arguments, run under one key."""

    program: Program
    key: PRNGKey
    conditional: Conditional

    def draw(self) -> tuple[Values, Elements]:
        values, log_q = evaluate(self.program, self.key, self.conditional.given)
        return {name: values[name] for name in self.conditional.names}, self.conditional.reduce_proposed(log_q)

    def score(self, values: Values) -> Elements:
        return self.conditional.reduce_proposed(self.log_probs(values))

    def log_probs(self, values: Values) -> LogProbs:
        _, log_q = evaluate(self.program, self.key, {**self.conditional.given, **values})
        return {name: log_q[name] for name in self.conditional.names}

    def covers(self, values: Values) -> dict[str, Array]:
        # Checked by the supports, because NumPyro's densities need not be zero outside of them.
        sites = raw_sites(self.program, self.key, {**self.conditional.given, **values})
        return {name: jnp.all(sites[name]["fn"].support(values[name])) for name in values}


def as_kernel(proposal: Any) -> Kernel:
    """A user's program as a kernel; kernels are returned unchanged."""
    return proposal if isinstance(proposal, Kernel) else Programmed(proposal)
