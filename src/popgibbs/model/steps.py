"""The steps of a sequence, and the conditional of each.

Each step t of a sequence is a block {z_t} with the factors p(z_t | z_{t-1}), p(z_{t+1} | z_t) and p(x_t | z_t).
`StepConditional` is its conditional as kernels and moves use it.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpyro
from jax.lax import stop_gradient
from jaxtyping import Array

from popgibbs._typing import Elements, LogProbs, Mask, Values
from popgibbs.data import Data
from popgibbs.model.conditionals import Conditional, FiniteSite, ProposalData
from popgibbs.model.program import Program, finite_support, returned
from popgibbs.model.state_space import TIME, NextState, StateSpaceModel, one_event, where_exists
from popgibbs.model.target import Target, constant, total

INTO_NEXT = "the transition into the next step"


class Neighbour(NamedTuple):
    """The state of the step before or after; at the ends `exists` is false, and `value` has no meaning."""

    value: Any
    exists: Array
    before: Any = None  # at the first draw, the neighbour before this one, for proposals that extrapolate a motion


class StepConditional(Conditional):
    """p(z_t | x_t, z_{t-1}, z_{t+1}, g) up to its constant.

    At the initial step there is no z_{t+1} yet, and no g if the global sites are drawn later (`has_globals`).
    """

    model: StateSpaceModel
    data: ProposalData  # of this step
    t: Array
    previous: Neighbour
    following: Neighbour
    shared: Any  # the return value of `model.globals`
    has_globals: bool = eqx.field(static=True, kw_only=True, default=True)

    @property
    def modelled(self) -> Program:
        return lambda: numpyro.sample(self.model.state, self._prior)

    @property
    def _prior(self) -> NextState:
        return NextState(self.model, self.previous.value, self.previous.exists, self.shared)

    def bind(self, proposal: Any) -> Program:
        model, shared = constant(self.model), stop_gradient(self.shared) if self.has_globals else None
        if self.initial and hasattr(proposal, "initial"):
            return lambda: proposal.initial(self.data, self.t, self.previous, shared, model)
        return lambda: proposal(self.data, self.t, self.previous, self.following, shared, model)

    def log_probs(self, values: Values) -> LogProbs:
        state = values[self.model.state]
        factors = {self.model.state: self._prior.log_prob(state)}
        if self.has_globals:
            observed = one_event(self.model.emission(state, self.shared)).log_prob(self.data[self.model.observed])
            factors[self.model.observed] = observed if self.data.beta is None else self.data.beta * observed
        if not self.initial:
            onward = one_event(self.model.transition(state, self.shared))
            into_next = onward.log_prob(where_exists(self.following.exists, self.following.value, onward))
            factors[INTO_NEXT] = jnp.where(self.following.exists, into_next, 0.0)
        return factors

    def reduce(self, log_probs: LogProbs) -> Elements:
        return total(log_probs)[None]

    def mask(self, log_probs: LogProbs) -> LogProbs:
        return log_probs  # a step is real or padded as a whole, and the sweep over steps handles that

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
    def finite(self) -> dict[str, FiniteSite]:
        values = finite_support(one_event(self.model.initial(self.shared)))
        return {self.model.state: FiniteSite(values, ())} if values else {}

    def lay(self, elements: Array, name: str) -> Array:
        del name
        return elements[0]


class StepSequence(eqx.Module):
    """The sequence of one instance: the data of its steps, and the values that the steps share."""

    target: Target
    proposal: Any

    @property
    def model(self) -> StateSpaceModel:
        return self.target.model

    @property
    def data(self) -> Data:
        return self.target.data

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
        """The global variables of a particle, as `model.globals` returns them."""
        return returned(self.model.globals, {n: v for n, v in latents.items() if n != self.model.state})

    def prepared(self, shared: Any) -> Any:
        """The result of the proposal's `prepare` for the whole sequence, with one entry per step; None without it."""
        if not hasattr(self.proposal, "prepare"):
            return None
        whole = ProposalData(self.data.values, self.data.mask, self.target.beta)
        return self.proposal.prepare(whole, stop_gradient(shared), constant(self.model))

    def step_data(self, observed: Array, prepared: Any) -> ProposalData:
        """The data that the proposal of one step sees."""
        return ProposalData({**self.data.values, self.model.observed: observed}, {}, self.target.beta, prepared)


def shifted(states: Array, by: int) -> Array:
    """The states of the steps before (1) or after (−1); at the end, which has no such step, the state itself."""
    return jnp.concatenate([states[:1], states[:-1]]) if by > 0 else jnp.concatenate([states[1:], states[-1:]])
