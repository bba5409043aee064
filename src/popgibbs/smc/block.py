"""Blocks: sites that are proposed, moved and weighed together."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from popgibbs._random import standard
from popgibbs._typing import PRNGKey, Values
from popgibbs.model import BlockConditional, Conditional, Particle, Partition, Site, Target, condition
from popgibbs.moves import Move, MoveKeys, Reweight, propose
from popgibbs.proposals import BoundKernel, Kernel, Shuffled, as_kernel
from popgibbs.smc.context import Context, update_keys
from popgibbs.smc.events import BlockEvent, Event, has_arrays
from popgibbs.smc.population import Population, Report
from popgibbs.smc.staleness import disagreement
from popgibbs.smc.weights import ess


class Block(eqx.Module):
    """Sites that are updated together, their proposal, and the move that corrects the proposal.

    A proposal is a NumPyro program `proposal(data, latents, model)` that samples exactly the block's sites. It sees the
    instance (`data["x"]`, `data.mask["points"]`), the latents of the other blocks, and the model. An optional method
    `initial` with the same arguments makes the first draw, when only the latents of earlier blocks exist.

    Args:
        *sites: The names of the sites.
        proposal: A NumPyro program, usually an `eqx.Module`; or a `Kernel`, such as `Laplace()` or `Enumerated()`.
            By default the sampler builds one from the model: `Enumerated()` for finite sites, `Counts()` for counts
            without bound, `Laplace()` for continuous ones. `HMC` needs none where an earlier block or another sampler
            makes the first draw.
        move: `Reweight()`, `Metropolis()`, `Gibbs()` or `HMC(...)`. By default `Metropolis()` with a proposal built from
            the model, with `Laplace()`, `Neural()` and `Counts()`, or where reweighting would be biased, and `Reweight()`
            otherwise.
        assigned_by: A discrete site that assigns each data point to a component, for sites in a plate of components.
            Each component then gets its own weight, or is accepted separately.
        exchangeable: A plate of components that the model does not distinguish but the first draw does, by seeds or by a
            network with one output per component. They are shuffled after that draw, whose density becomes the average
            over all labellings; otherwise the evidence is too low by up to log M! for M components.
        name: The name in messages and diagnostics; by default the sites joined by commas.

    Raises:
        ValueError: An argument has the wrong type, or a site is named twice.

    Examples:
        >>> block = pg.Block("tau", "mu", proposal=pg.Prior(), move=pg.Metropolis())
        >>> block.name, block.sites
        ('tau,mu', ('tau', 'mu'))
    """

    splits: ClassVar[bool] = True  # whether its weight may split into elements of a plate
    learns: ClassVar[bool] = True  # whether a proposal that is built for it may have networks

    kernel: Any
    chosen: Move | None
    sites: tuple[str, ...] = eqx.field(static=True)
    name: str = eqx.field(static=True)
    assigned_by: str | None = eqx.field(static=True)
    exchangeable: str | None = eqx.field(static=True)
    assigned_automatically: bool = eqx.field(static=True)  # `assigned_by` was found in the model, not named by the user

    def __init__(
        self,
        *sites: str,
        proposal: Any = None,
        move: Move | None = None,
        assigned_by: str | None = None,
        exchangeable: str | None = None,
        name: str | None = None,
    ):
        if not sites:
            raise ValueError("a Block needs the name of at least one site")
        for site in sites:
            if not isinstance(site, str):
                raise ValueError(f"the sites of a Block are names, but one is {site!r}; pass the proposal by keyword")
        if repeated := sorted({site for site in sites if sites.count(site) > 1}):
            raise ValueError(f"Block{sites}: the sites {repeated} are named twice")
        if move is not None and not isinstance(move, Move):
            raise ValueError(
                f"Block{sites}: move={move!r} is not a move; use Reweight(), Metropolis(), Gibbs() or HMC(...)"
            )
        if isinstance(proposal, type):
            raise ValueError(f"Block{sites}: proposal={proposal.__name__} is a class; pass an instance of it")
        if proposal is not None and not (callable(proposal) or isinstance(proposal, Kernel)):
            raise ValueError(f"Block{sites}: proposal={proposal!r} is neither a NumPyro program nor a Kernel")
        if name is not None and not (isinstance(name, str) and name):
            raise ValueError(f"Block{sites}: name={name!r} is not a name")
        self.kernel = None if proposal is None else as_kernel(proposal)
        self.chosen = move
        self.sites = sites
        self.name = ",".join(sites) if name is None else name
        self.assigned_by = assigned_by
        self.exchangeable = exchangeable
        self.assigned_automatically = False

    @property
    def move(self) -> Move:
        """The chosen move, or `Reweight()`; a sampler replaces that default where it would be biased."""
        return Reweight() if self.chosen is None else self.chosen

    @property
    def updated(self) -> tuple[str, ...]:
        """The sites that an update changes."""
        return self.sites

    @property
    def proposes(self) -> bool:
        """Whether updates use the proposal; HMC uses one for the first draw only."""
        return self.kernel is not None and self.move.uses_proposal

    @property
    def is_automatic(self) -> bool:
        """Whether the block leaves its proposal to the sampler."""
        return self.kernel is None and self.splits and not self.move.sums_out_finite

    @property
    def proposal(self) -> Any:
        """The proposal that was passed to the block."""
        return getattr(self.kernel, "program", self.kernel)

    @property
    def first_kernel(self) -> Kernel:
        """The proposal of the first draw."""
        return self.kernel if self.exchangeable is None else Shuffled(self.kernel, self.exchangeable)

    @property
    def needs_parents(self) -> bool:
        """Whether the first draw needs the parents of its sites."""
        return self.kernel.needs_parents

    def element_plates(self, partition: Partition) -> tuple[str, ...]:
        """The plates whose elements have their own weights."""
        return partition.plates

    def weight_summary(self, partition: Partition) -> str:
        """How the weight splits, in a few words, for `APG.describe`."""
        if partition.whole:
            return "whole"
        if partition.assigned_by is not None:
            return f"by {partition.plates[0]}, assigned by {partition.assigned_by.name}"
        return f"by {' × '.join(partition.plates)}"

    def with_move(self, move: Move) -> "Block":
        """The same block with another move.

        Args:
            move: The new move.

        Examples:
            >>> sampler.blocks[0].with_move(pg.Metropolis()).move
            Metropolis()
        """
        return self.changed(chosen=move)

    def with_proposal(self, proposal: Any) -> "Block":
        """The same sites and move with another proposal, and without `exchangeable`.

        Args:
            proposal: The new proposal.

        Examples:
            >>> sampler.blocks[0].with_proposal(pg.Prior()).proposal
            Prior()
        """
        return self.changed(kernel=as_kernel(proposal), exchangeable=None)

    def changed(self, **changes: Any) -> "Block":
        """The same block with other fields."""
        new = object.__new__(type(self))
        for field in fields(self):
            object.__setattr__(new, field.name, changes.get(field.name, getattr(self, field.name)))
        return new

    # The algorithm, for one population of one instance ------------------------------------------------------------------

    def conditional(self, context: Context, latents: Values) -> BlockConditional:
        """p(z_b | x, z_-b) at the latents of one particle."""
        plan = context.plan
        return condition(context.target, latents, self.updated, plan.partition, plan.summed)

    def bound(self, key: PRNGKey, conditional: BlockConditional, latents: Values) -> BoundKernel:
        """The proposal of an update of one particle."""
        del latents  # proposals do not see the block's old values
        return self.kernel.bind(key, conditional)

    def draw_first(self, key: PRNGKey, context: Context, names: tuple[str, ...], latents: Values) -> tuple[Values, Array]:
        """Values of the named sites of one particle, given the latents that exist, and their log q."""
        values, log_q = self._bound_first(key, context, names, latents).draw()
        return values, jnp.sum(log_q)

    def score_first(
        self, key: PRNGKey, context: Context, names: tuple[str, ...], latents: Values, values: Values
    ) -> Array:
        """log q of other values under the same key."""
        return jnp.sum(self._bound_first(key, context, names, latents).score(values))

    def _bound_first(self, key: PRNGKey, context: Context, names: tuple[str, ...], latents: Values) -> BoundKernel:
        partition = context.plan.first_partition
        return self.first_kernel.bind(
            standard(key), BlockConditional(context.target, partition, names=names, given=dict(latents), initial=True)
        )

    def update(self, key: PRNGKey, context: Context, population: Population) -> tuple[Population, Event, Report]:
        """Resample, move every particle, multiply its weight by the move's incremental weight."""
        key_resample, keys = update_keys(key, population.log_weights.shape[0])
        population = context.resample(key_resample, population)

        def move(keys: MoveKeys, particle: Particle) -> Any:
            conditional = self.conditional(context, particle.latents)
            proposal = self.bound(keys.draw, conditional, particle.latents) if self.proposes else None
            moved, log_v, info = self.move(keys, proposal, conditional, particle)
            acceptance = jnp.sum(jnp.where(conditional.real, info.accepted, 0.0)) / jnp.sum(conditional.real)
            return moved, jnp.sum(log_v), info, acceptance, _stale(context, conditional, moved)

        moved, log_v, info, acceptance, stale = jax.vmap(move)(keys, population.particles)
        stale = jnp.max(jnp.where(population.log_weights[:, None] > -jnp.inf, stale, 0.0), axis=0)
        event = BlockEvent(
            keys=keys.draw,
            latents=population.particles.latents,
            proposed=info.proposed,
            log_weights=population.log_weights,
            log_v=info.log_v,
            block=context.index,
        )
        impossible = population.loses_weight(log_v)
        population = population.weigh(moved, log_v)
        return population, event, Report(ess(population.log_weights), jnp.mean(acceptance), impossible, stale)

    def lesson(self, keys: MoveKeys, context: Context, particle: Particle) -> tuple[Array, Array]:
        """−log q of the block's sites at a draw from the posterior, and how often a proposal would be accepted there.

        Zero and NaN for blocks that do not learn, which are not run.
        """
        if not self.proposes or not has_arrays(self.kernel):
            return jnp.zeros(()), jnp.full((), jnp.nan)
        conditional = self.conditional(context, particle.latents)
        bound = self.bound(keys.draw, conditional, particle.latents)
        _, _, log_v = jax.lax.stop_gradient(propose(bound, conditional, particle))
        acceptance = jnp.sum(jnp.where(conditional.real, jnp.exp(jnp.minimum(log_v, 0.0)), 0.0))
        loss = -jnp.sum(bound.score({name: particle.latents[name] for name in self.updated}))
        return loss, acceptance / jnp.sum(conditional.real)

    # Checks when a sampler is built -------------------------------------------------------------------------------------

    def resolved(self, sites: tuple[Site, ...]) -> "Block":
        """The block with the arguments that it leaves to the model."""
        del sites
        return self

    def check_model(self, target: Target) -> None:
        """Raise if this kind of block cannot update the model's sites."""

    def summed_sites(self, sites: Mapping[str, Site]) -> tuple[str, ...]:
        """The finite sites that the block's move sums out."""
        if not self.move.sums_out_finite:
            return ()
        return tuple(name for name in self.sites if sites[name].support is not None)

    def probed_conditional(
        self, target: Target, names: tuple[str, ...], given: tuple[str, ...], latents: Values, *, initial: bool
    ) -> Conditional:
        """A conditional, at given latents, that represents every one the block's kernel will be bound to."""
        shown = {name: latents[name] for name in given}
        return BlockConditional(target, Partition(target.sites), names=names, given=shown, initial=initial)

    def probed(self, value: Any) -> Any:
        """The part of a site's value that `probed_conditional` is about."""
        return value


def _stale(context: Context, conditional: BlockConditional, moved: Particle) -> Array:
    """By site, how far carried log-probabilities are from fresh ones after elements were accepted one by one.

    A block that is weighed or accepted as a whole computes all of its factors, so there is nothing to compare.
    """
    sites = context.target.sites
    if context.plan.partition.whole or context.plan.proved:
        return jnp.zeros(len(sites))
    fresh = conditional.log_probs({name: moved.latents[name] for name in conditional.names})
    found = {name: jnp.max(disagreement(moved.log_probs[name], fresh[name])) for name in fresh}
    return jnp.stack([found.get(site.name, jnp.zeros(())) for site in sites])
