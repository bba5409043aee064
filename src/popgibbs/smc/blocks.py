"""Blocks of sites that are proposed, moved and resampled together."""

from typing import Any

import equinox as eqx

from popgibbs.moves import HMC, Move, Weigh
from popgibbs.proposals import Shuffled, as_kernel


class Block(eqx.Module):
    """Sites that are updated together, their proposal, and the move that puts the proposal right.

    `by` names a discrete site that assigns each data point to a component, when the block's sites lie in a plate of
    components: every component is then weighed, or accepted, by itself.

    `exchangeable` names a plate of components that the model does not tell apart but the block's first draw does, by
    seeds or by a network with an output for each. They are shuffled after that draw, whose density becomes the average
    over all labellings; without this the evidence is low by up to log M! for M components.
    """

    kernel: Any
    chosen: Move | None
    sites: tuple[str, ...] = eqx.field(static=True)
    by: str | None = eqx.field(static=True)
    exchangeable: str | None = eqx.field(static=True)

    def __init__(
        self,
        *sites: str,
        proposal: Any = None,
        move: Move | None = None,
        by: str | None = None,
        exchangeable: str | None = None,
    ):
        if not sites:
            raise ValueError("a Block needs the name of at least one site")
        for site in sites:
            if not isinstance(site, str):
                raise ValueError(f"the sites of a Block are names, but one is {site!r}; pass the proposal by keyword")
        if repeated := sorted({site for site in sites if sites.count(site) > 1}):
            raise ValueError(f"Block{sites}: the sites {repeated} are named twice")
        if move is not None and not isinstance(move, Move):
            raise ValueError(f"Block{sites}: move={move!r} is not a move; use Weigh(), Metropolis() or HMC(...)")
        if isinstance(proposal, type):
            raise ValueError(f"Block{sites}: proposal={proposal.__name__} is a class; pass an instance of it")
        if proposal is not None and not (callable(proposal) or hasattr(proposal, "draw")):
            raise ValueError(f"Block{sites}: proposal={proposal!r} is not a NumPyro program; it cannot be called")
        self.kernel = None if proposal is None else as_kernel(proposal)
        self.chosen = move
        self.sites = sites
        self.by = by
        self.exchangeable = exchangeable

    @property
    def label(self) -> str:
        return ",".join(self.sites)

    @property
    def proposes(self) -> bool:
        """Whether updates use the proposal; HMC uses one for the first draw only."""
        return self.kernel is not None and not isinstance(self.move, HMC)

    @property
    def move(self) -> Move:
        """The move that was chosen, or the paper's. Where that would be biased, a sampler chooses another when built."""
        return Weigh() if self.chosen is None else self.chosen

    def with_move(self, move: Move) -> "Block":
        return eqx.tree_at(lambda block: block.chosen, self, move, is_leaf=lambda leaf: leaf is None)

    @property
    def first_kernel(self) -> Any:
        """The proposal of the first draw."""
        return self.kernel if self.exchangeable is None else Shuffled(self.kernel, self.exchangeable)

    @property
    def proposal(self) -> Any:
        """The proposal as it was given."""
        return getattr(self.kernel, "program", self.kernel)


class SequenceBlock(Block):
    """The states of a `StateSpaceModel`, updated one step after another, each resampled and weighed by itself.

    Its proposal is a NumPyro program of one step, `proposal(data, t, previous, following, globals, model)`: `data` holds
    the observation of step t, `previous` and `following` the neighbouring states (`.value`, and `.exists`, which is false
    at the ends), `globals` what the model's `globals` returned. Two methods are optional:

    - `initial(data, t, previous, globals, model)` for the first draw, when there is no following state; `globals` is None
      if a later block draws the global sites.
    - `prepare(data, globals, model)` sees the whole sequence, once before the steps, and returns arrays with an entry a
      step, found again in `data.prepared`.
    """

    def __init__(self, site: str, *, proposal: Any = None, move: Move | None = None):
        super().__init__(site, proposal=proposal, move=move)
