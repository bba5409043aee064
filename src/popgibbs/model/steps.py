"""The steps of a sequence: what a proposal of one step sees and aims at.

A step t of a sequence is a block of its own, {z_t}, with the factors p(z_t | z_{t-1}), p(z_{t+1} | z_t) and p(x_t | z_t).
`StepConditional` is its conditional, in the terms in which kernels and moves know one.
"""

from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpyro
from jax.lax import stop_gradient
from jaxtyping import Array

from popgibbs._typing import Elements, LogProbs, Mask, Values
from popgibbs.data import Data
from popgibbs.model.program import Program, finite_support, returned
from popgibbs.model.state_space import TIME, StateSpaceModel, Step, one_event, where_exists
from popgibbs.model.target import Conditional, constant, total

INTO_NEXT = "the transition into the next step"


class Neighbour(NamedTuple):
    """The state of the step before or after. At the ends there is none: its value is then of no meaning."""

    value: Any
    exists: Array
    before: Any = None  # at the first draw, the neighbour of the step before, from which a motion can be told


class StepConditional(eqx.Module):
    """p(z_t | x_t, z_{t-1}, z_{t+1}, g) up to its constant.

    At the initial step there is no z_{t+1} yet, and no g where the global sites are drawn later (`has_globals`).
    """

    model: StateSpaceModel
    data: Data  # of this step
    t: Array
    previous: Neighbour
    following: Neighbour
    shared: Any  # what `model.globals` returned
    initial: bool = eqx.field(static=True, default=False)
    has_globals: bool = eqx.field(static=True, default=True)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.model.state,)

    @property
    def given(self) -> Values:
        return {}

    @property
    def modelled(self) -> Program:
        """The model's own program for the state of this step."""
        return lambda: numpyro.sample(self.model.state, self._prior)

    @property
    def _prior(self) -> Step:
        return Step(self.model, self.previous.value, self.previous.exists, self.shared)

    def bind(self, proposal: Any) -> Program:
        """A user's proposal without arguments. It sees the model and the globals as constants."""
        model, shared = constant(self.model), stop_gradient(self.shared) if self.has_globals else None
        if self.initial and hasattr(proposal, "initial"):
            return lambda: proposal.initial(self.data, self.t, self.previous, shared, model)
        return lambda: proposal(self.data, self.t, self.previous, self.following, shared, model)

    def log_probs(self, values: Values) -> LogProbs:
        """The factors of the step at another state."""
        state = values[self.model.state]
        factors = {self.model.state: self._prior.log_prob(state)}
        if self.has_globals:
            observed = one_event(self.model.emission(state, self.shared)).log_prob(self.data[self.model.observed])
            temper = 1.0 if self.data.temper is None else self.data.temper
            factors[self.model.observed] = temper * observed
        if not self.initial:
            onward = one_event(self.model.transition(state, self.shared))
            into_next = onward.log_prob(where_exists(self.following.exists, self.following.value, onward))
            factors[INTO_NEXT] = jnp.where(self.following.exists, into_next, 0.0)
        return factors

    def reduce(self, log_probs: LogProbs) -> Elements:
        """The step is one element."""
        return total(log_probs)[None]

    def reduce_proposed(self, log_q: LogProbs) -> Elements:
        return self.reduce({self.model.state: log_q[self.model.state]})

    def mask(self, log_probs: LogProbs) -> LogProbs:
        """A step is real or not as a whole, which `walk` sees to."""
        return log_probs

    def is_real(self, name: str, value: Array) -> Array:
        del name, value
        return jnp.ones((), bool)

    def accept(self, accepted: Mask, new: Values, old: Values, *, log_probs: bool) -> Values:
        del log_probs
        return {name: jnp.where(accepted[0], new[name], old[name]) for name in new}

    @property
    def real(self) -> Mask:
        return jnp.ones(1, bool)

    @property
    def supports(self) -> list[tuple[int, ...]]:
        return [finite_support(one_event(self.model.initial(self.shared))) or ()]

    def lay(self, elements: Array, name: str) -> Array:
        del name
        return elements[0]


AnyConditional: TypeAlias = Conditional | StepConditional
"""What kernels and moves work on: the conditional of a block, or of one step of a sequence."""


class Sequence(eqx.Module):
    """The sequence of one instance: its steps' data, and what they share."""

    model: StateSpaceModel
    data: Data
    proposal: Any

    @property
    def observed(self) -> Array:
        return self.data[self.model.observed]

    @property
    def num_steps(self) -> int:
        return self.observed.shape[0]

    @property
    def real(self) -> Mask:
        """Which steps are real rather than padded."""
        return self.data.mask.get(TIME, jnp.ones(self.num_steps, bool))

    def shared(self, latents: Values) -> Any:
        """What the steps of a particle share: its global variables, as `model.globals` returns them."""
        return returned(self.model.globals, {n: v for n, v in latents.items() if n != self.model.state})

    def prepared(self, shared: Any) -> Any:
        """What the proposal's `prepare`, if it has one, makes of the whole sequence: arrays with an entry a step."""
        if not hasattr(self.proposal, "prepare"):
            return None
        return self.proposal.prepare(self.data, stop_gradient(shared), constant(self.model))

    def step_data(self, observed: Array, prepared: Any) -> Data:
        """The data as the proposal of one step sees them."""
        return Data({**self.data.values, self.model.observed: observed}, {}, self.data.temper, prepared)


def shifted(states: Array, by: int) -> Array:
    """The states of the steps before (1) or after (−1); at the end, where there is none, the state itself."""
    return jnp.concatenate([states[:1], states[:-1]]) if by > 0 else jnp.concatenate([states[1:], states[-1:]])
