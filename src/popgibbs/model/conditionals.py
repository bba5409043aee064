"""The conditional p(z_b | x, z_-b) of a block, which proposals approximate and moves leave invariant.

Kernels and moves use only the abstract `Conditional`. There are two kinds: the conditional of a block of sites, here, and
that of one step of a sequence, in `steps.py`.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from popgibbs._typing import Elements, LogProbs, Mask, Values
from popgibbs.data import Data
from popgibbs.model.partition import Partition
from popgibbs.model.program import Program, expand, finite_support, masked, raw_sites
from popgibbs.model.target import Target, by_name, constant, existing


class ProposalData(Data):
    """An instance as a proposal sees it: its arrays and masks, the temperature, and the entries of `prepare`."""

    beta: Any = None  # the power of the likelihood in tempered training; None: 1
    prepared: Any = None  # in a sequence: this step's entry of the result of the proposal's `prepare`


@dataclass(frozen=True)
class Summed:
    """Finite sites of a block that can be summed out, separately for each element of a plate."""

    names: tuple[str, ...]
    partition: Partition


class FiniteSite(NamedTuple):
    """A finite site."""

    values: tuple[int, ...]  # that each entry can have
    shape: tuple[int, ...]  # of the entries


class Conditional(eqx.Module):
    """p(z_b | x, z_-b) up to its constant, with log-probabilities by element of the block."""

    names: tuple[str, ...] = eqx.field(static=True, kw_only=True)  # the block's sites
    given: Values = eqx.field(kw_only=True)  # values of the other sites that exist
    initial: bool = eqx.field(static=True, kw_only=True, default=False)  # whether this is the first draw
    summed: Summed | None = eqx.field(static=True, kw_only=True, default=None)  # sites that can be summed out

    @property
    @abstractmethod
    def modelled(self) -> Program:
        """The model's own program for the block's sites, given `given`."""

    @property
    @abstractmethod
    def finite(self) -> dict[str, FiniteSite]:
        """Those of the block's sites that are finite."""

    @property
    @abstractmethod
    def real(self) -> Mask:
        """Which elements of the block are real rather than padded."""

    @abstractmethod
    def bind(self, proposal: Any) -> Program:
        """A user's proposal with its arguments bound: the model as a constant, and none of the block's own values."""

    @abstractmethod
    def log_probs(self, values: Values) -> LogProbs:
        """The factors that contain the block's sites, at other values of these sites."""

    @abstractmethod
    def reduce(self, log_probs: LogProbs) -> Elements:
        """Log-probabilities summed into the block's elements."""

    @abstractmethod
    def mask(self, log_probs: LogProbs) -> LogProbs:
        """Numbers per plate element of the block's sites, with zero at padded elements."""

    @abstractmethod
    def is_real(self, name: str, value: Array) -> Array:
        """Which batch elements of a site's value are real rather than padded."""

    @abstractmethod
    def lay(self, elements: Array, name: str) -> Array:
        """One number per element as the value of a site."""

    @abstractmethod
    def accept(self, accepted: Mask, new: Values, old: Values, *, log_probs: bool) -> Values:
        """New values, or log-probabilities, where their element is accepted, and old ones elsewhere."""

    def without_summed(self, values: Values) -> tuple[LogProbs, "Conditional"]:
        """The block's factors without the sites that can be summed out, and the conditional of these sites.

        Both are at the given values of the block's other sites.
        """
        raise AssertionError(f"nothing can be summed out of {self.names}")

    def reduce_proposed(self, log_q: LogProbs) -> Elements:
        """A proposal's log-probabilities, without padded elements, summed into the block's elements."""
        return self.reduce(self.mask({name: log_q[name] for name in self.names}))


class BlockConditional(Conditional):
    """The conditional of a block of sites.

    At the initial step only some latents are given, and only the factors whose sites exist are included.
    """

    target: Target
    partition: Partition = eqx.field(static=True)

    @property
    def modelled(self) -> Program:
        return self.target.program

    def bind(self, proposal: Any) -> Program:
        call = getattr(proposal, "initial", proposal) if self.initial else proposal
        model, seen = constant(self.target.model), self.target.data
        data = ProposalData(seen.values, seen.mask, self.target.beta)
        return lambda: call(data, dict(self.given), model)

    @property
    def finite(self) -> dict[str, FiniteSite]:
        # Found for this instance, because the number of values may depend on the size of an array.
        sites = raw_sites(self.target.program, jax.random.key(0), self.given)
        supports = {name: finite_support(sites[name]["fn"]) for name in self.names}
        shapes = {name: jnp.shape(sites[name]["value"]) for name in self.names}
        return {name: FiniteSite(values, shapes[name]) for name, values in supports.items() if values}

    def lay(self, elements: Array, name: str) -> Array:
        return self.partition.spread_values(elements, name, self.target.plate_sizes)

    @property
    def updated(self) -> tuple[str, ...]:
        """The sites that take other values together with the block's."""
        return self.names

    @property
    def factors(self) -> tuple[str, ...]:
        """The factors that contain the block's sites and, at the initial step, no site that has not been drawn."""
        return existing(self.target.sites, self.updated, self.given)

    def log_probs(self, values: Values) -> LogProbs:
        return self.target.log_probs({**self.given, **values}, self.factors)

    def without_summed(self, values: Values) -> tuple[LogProbs, "BlockConditional"]:
        assert self.summed is not None
        given = {**self.given, **values}
        finite = BlockConditional(self.target, self.summed.partition, names=self.summed.names, given=given)
        others = [name for name in self.factors if name not in finite.factors]
        return self.target.log_probs(finite.given, others), finite

    def reduce(self, log_probs: LogProbs) -> Elements:
        return self.partition.reduce(log_probs, self.target.plate_sizes, self.given)

    def mask(self, log_probs: LogProbs) -> LogProbs:
        return masked(log_probs, by_name(self.target.sites), self.target.data.mask)

    def is_real(self, name: str, value: Array) -> Array:
        site = by_name(self.target.sites)[name]
        return self.mask({name: jnp.ones(value.shape[: value.ndim - site.event_dim])})[name] > 0

    def accept(self, accepted: Mask, new: Values, old: Values, *, log_probs: bool) -> Values:
        sizes = self.target.plate_sizes

        def choose(name: str) -> Array:
            if log_probs:
                where = self.partition.spread(accepted, name, sizes, self.given)
            else:
                where = self.partition.spread_values(accepted, name, sizes)
            return jnp.where(where, new[name], old[name])

        return {name: choose(name) for name in new}

    @property
    def real(self) -> Mask:
        plates = self.partition.plates
        real = jnp.ones(self.partition.shape(self.target.plate_sizes), bool)
        for axis, plate in enumerate(plates):
            if plate in self.target.data.mask:
                real &= expand(self.target.data.mask[plate], axis - len(plates))
        return real.reshape(-1)


def condition(
    target: Target, latents: Values, names: tuple[str, ...], partition: Partition, summed: Summed | None = None
) -> BlockConditional:
    """p(z_b | x, z_-b) at the latents of one particle."""
    given = {name: value for name, value in latents.items() if name not in names}
    return BlockConditional(target, partition, names=names, given=given, summed=summed)
