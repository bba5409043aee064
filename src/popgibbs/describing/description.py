"""`Description`, which `APG.describe` returns: rows for code, a table, a graph."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from popgibbs.describing.mermaid import flowchart

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class SiteRow:
    """A site of the model."""

    name: str
    family: str  # of its distribution, such as `Normal`
    support: str
    shape: tuple[int, ...]  # of its value in the example
    plates: tuple[str, ...]
    parents: tuple[str, ...]  # the latents that its distribution depends on
    observed: bool
    follows_itself: bool  # a state that depends on the one before


@dataclass(frozen=True)
class Seen:
    """A factor that contains a block's sites and belongs to another site."""

    name: str
    pooled: tuple[str, ...]  # the plates over which its elements are pooled
    assigned_by: str | None  # the site that says which component an element belongs to

    def __str__(self) -> str:
        over = f" over {', '.join(self.pooled)}" if self.pooled else ""
        return f"{self.name}{over}" + (f" by {self.assigned_by}" if self.assigned_by else "")


@dataclass(frozen=True)
class BlockRow:
    """A block of the sampler."""

    name: str
    sites: tuple[str, ...]
    proposal: str  # what it does, in a few words
    move: str
    weight: str  # how its weight splits
    given: tuple[str, ...]  # the latents of other blocks that it depends on
    children: tuple[Seen, ...]  # the factors of other sites that depend on it
    num_elements: int  # in the example
    num_numbers: int  # of one element
    num_parameters: int  # of its proposal, to be trained


@dataclass(frozen=True, repr=False)
class Description:
    """What a sampler is made of; `print` shows a table and notebooks also the graph.

    Attributes:
        model: The name of the model.
        plates: The size of each plate in the example.
        sites: The model's sites: `name`, `family`, `support`, `shape`, `plates`, `parents`, `observed`.
        blocks: The blocks of a sweep: `name`, `sites`, `proposal` and `move` in words, how its `weight` splits, the
            latents it is `given`, the `children` that depend on it with the plates over which each is `pooled`,
            `num_elements` with `num_numbers` each, and `num_parameters` to train.
        first_draw: How the first particles are drawn.
        exchangeable: The components that summaries give in one labelling: their sites, then their labels.
        num_model_parameters: The number of trainable parameters of the model.

    Examples:
        >>> print(sampler.describe())
        model model · observed x ~ Normal · plates points 4
        first draw by the blocks, mu
        <BLANKLINE>
        block               proposal and move   weight   sees            numbers   trained
        ──────────────────────────────────────────────────────────────────────────────────
        mu ~ Normal, real   program Location    whole    x over points     1 × 1         1
                            Reweight
    """

    model: str
    plates: dict[str, int]
    sites: tuple[SiteRow, ...]
    blocks: tuple[BlockRow, ...]
    first_draw: str
    num_model_parameters: int
    exchangeable: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()

    def __str__(self) -> str:
        from popgibbs.describing.table import as_text  # here, because rich is slow to import

        return as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from popgibbs.describing.table import as_html

        return as_html(self)

    @property
    def mermaid(self) -> str:
        """The graph as a flowchart in Mermaid's language, which GitHub and many editors draw."""
        return flowchart(self.sites, self.plates, [block.sites for block in self.blocks])

    def figure(self) -> "Figure":
        """The graph as a figure.

        Sites have the colour of their block, observed sites are shaded, boxes are plates, and edges run from parent to
        child.

        Returns:
            A Matplotlib figure; `figure.savefig("graph.png")` writes it.

        Examples:
            >>> sampler.describe().figure().savefig("graph.png")
        """
        from popgibbs.describing.drawing import draw  # here, because Matplotlib is slow to import

        return draw(self.sites, self.plates, [(block.name, block.sites) for block in self.blocks])
