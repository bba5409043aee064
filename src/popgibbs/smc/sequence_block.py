"""A block whose states are updated step by step."""

from collections.abc import Mapping
from typing import Any, ClassVar

from jaxtyping import Array

from popgibbs._typing import PRNGKey, Values
from popgibbs.model import (
    TIME,
    Conditional,
    Partition,
    Site,
    StateSpaceModel,
    StepSequence,
    Target,
    touched,
    undrawn,
)
from popgibbs.moves import Move
from popgibbs.smc.block import Block
from popgibbs.smc.context import Context
from popgibbs.smc.events import Event
from popgibbs.smc.population import Population, Report
from popgibbs.smc.sequences import at_step, draw_steps, score_first_steps, update_steps

PROBED_STEP = 1  # the step that represents all of them in checks: it has one before and one after


class SequenceBlock(Block):
    """The states of a `StateSpaceModel`, updated one step after another, with resampling and a weight at every step.

    The proposal is a NumPyro program of one step, `proposal(data, t, previous, following, globals, model)`: `data` holds
    the observation of step t, `previous` and `following` the neighbouring states (`.value`, and `.exists`, which is false
    at the ends), `globals` the return value of the model's `globals`. Two methods are optional:

    - `initial(data, t, previous, globals, model)` makes the first draw, when there is no following state; `globals` is
      None if a later block draws the global sites.
    - `prepare(data, globals, model)` sees the whole sequence, once before the steps, and returns arrays with one entry
      per step, available as `data.prepared`.

    Args:
        site: The name of the model's state.
        proposal: A NumPyro program of one step, or a `Kernel`.
        move: The move that corrects each step; by default `Reweight()`.
        name: The name in messages and diagnostics; by default the site.

    Examples:
        >>> class Smoother(eqx.Module):
        ...     def __call__(self, data, t, previous, following, globals, model):
        ...         before = jnp.where(previous.exists, previous.value, data["x"])
        ...         numpyro.sample("z", dist.Normal((before + data["x"]) / 2, 0.7))
        >>> block = pg.SequenceBlock("z", proposal=Smoother(), move=pg.Metropolis())
    """

    splits: ClassVar[bool] = False  # every step already has its own weight

    def __init__(self, site: str, *, proposal: Any = None, move: Move | None = None, name: str | None = None):
        super().__init__(site, proposal=proposal, move=move, name=name)

    @property
    def needs_parents(self) -> bool:
        """Whether the first draw needs the globals: the factors of a step depend on them."""
        return self.kernel.from_model

    def element_plates(self, partition: Partition) -> tuple[str, ...]:
        return (TIME,)

    def weight_summary(self, partition: Partition) -> str:
        return "step by step"

    def sequence(self, target: Target) -> StepSequence:
        return StepSequence(target, self.proposal)

    def draw_first(self, key: PRNGKey, context: Context, names: tuple[str, ...], latents: Values) -> tuple[Values, Array]:
        (name,) = names
        sequence = self.sequence(context.target)
        states, log_q = draw_steps(key, sequence, self.kernel, _globals(context, name, latents))
        return {name: states}, log_q

    def score_first(
        self, key: PRNGKey, context: Context, names: tuple[str, ...], latents: Values, values: Values
    ) -> Array:
        (name,) = names
        sequence, drawn = self.sequence(context.target), _globals(context, name, latents)
        return score_first_steps(key, sequence, self.kernel, drawn, values[name])

    def update(self, key: PRNGKey, context: Context, population: Population) -> tuple[Population, Event, Report]:
        kernel = self.kernel if self.proposes else None
        return update_steps(key, context, self.sequence(context.target), kernel, self.move, population)

    def check_model(self, target: Target) -> None:
        what, model = f"SequenceBlock('{self.name}')", target.model
        if not isinstance(model, StateSpaceModel):
            raise ValueError(f"{what} updates the steps of a StateSpaceModel; use a Block for other models")
        if self.sites != (model.state,):
            raise ValueError(f"{what} does not name the state of {type(model).__name__}: its state is '{model.state}'")
        if others := sorted(set(touched(target.sites, self.sites)) - {model.state, model.observed}):
            raise ValueError(f"{what}: the sites {others} outside the steps also depend on the states; use a Block")

    def summed_sites(self, sites: Mapping[str, Site]) -> tuple[str, ...]:
        return ()  # a step has one site, so no other would be left to move

    def probed_conditional(
        self, target: Target, names: tuple[str, ...], given: tuple[str, ...], latents: Values, *, initial: bool
    ) -> Conditional:
        has_globals = not undrawn(target.sites, (*given, *names))
        return at_step(self.sequence(target), PROBED_STEP, latents, initial, has_globals)

    def probed(self, value: Any) -> Any:
        return value[PROBED_STEP]


def _globals(context: Context, state: str, latents: Values) -> Values | None:
    """The latents if they include all globals, which may be drawn after the states; otherwise None."""
    return None if undrawn(context.target.sites, (*latents, state)) else latents
