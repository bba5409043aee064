"""A sampler whose parts have been checked against each other."""

from dataclasses import replace
from math import prod
from typing import Any

import equinox as eqx

from popgibbs._typing import Resampler
from popgibbs.data import Data
from popgibbs.model import Components, Partition, Site, Target, constant
from popgibbs.smc.block import Block
from popgibbs.smc.bridge import Bridge
from popgibbs.smc.context import Context, Plan


class BuiltSampler(eqx.Module):
    """A model and its blocks, checked against each other. The arrays of `model` are θ, those of `blocks` φ."""

    model: Any
    blocks: tuple[Block, ...]
    first: "BuiltSampler | None"  # the sampler that draws the first particles, without its model; None: this one
    sites: tuple[Site, ...] = eqx.field(static=True)
    plans: tuple[Plan, ...] = eqx.field(static=True)  # one per block
    resampler: Resampler = eqx.field(static=True)
    ess_threshold: float = eqx.field(static=True)
    small_example: bool = eqx.field(static=True, default=False)  # the example was too small to show effects of padding
    cannot_pad: str | None = eqx.field(static=True, default=None)  # why instances of several sizes are refused
    bridge: Bridge | None = eqx.field(static=True, default=None)  # draws the first particles instead of the blocks
    bridge_below: tuple[tuple[str, ...], int] | None = eqx.field(
        static=True, default=None
    )  # plates, and how few elements
    exchangeable: tuple[Components, ...] = eqx.field(static=True, default=())  # components without an order
    beta: Any = None  # the power of the likelihood in tempered training; None: 1

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """How each block's weight splits."""
        return tuple(plan.partition for plan in self.plans)

    def target(self, data: Data) -> Target:
        return Target(self.model, data, self.sites, self.beta)

    def context(self, index: int, data: Data) -> Context:
        """The context in which the block of that index updates an instance."""
        return Context(self.target(data), index, self.plans[index], self.resampler, self.ess_threshold)

    @property
    def with_constant_model(self) -> "BuiltSampler":
        """The sampler as log q sees it: θ gets no gradient from proposals, not even from those built from the model."""
        return replace(self, model=constant(self.model))

    def bridge_for(self, data: Data) -> Bridge | None:
        """The bridge that draws the first particles of instances of this size; None if `start` does."""
        if self.bridge is None or self.bridge_below is None:
            return self.bridge
        plates, few = self.bridge_below
        sizes = [data.mask[plate].shape[-1] for plate in plates if plate in data.mask]
        return self.bridge if prod(sizes) < few else None

    def without_model(self) -> "BuiltSampler":
        return replace(self, model=None)

    @property
    def start(self) -> "BuiltSampler":
        """The sampler that draws the first particles."""
        return self if self.first is None else replace(self.first, model=self.model, beta=self.beta).start
