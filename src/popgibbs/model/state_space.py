"""State-space models: global variables, a chain of states, an observation at every step."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.lax import stop_gradient
from jaxtyping import Array, Float
from numpyro.distributions.transforms import biject_to

from popgibbs._typing import PRNGKey
from popgibbs.model.program import family

TIME = "time"  # the plate of the steps


class StateSpaceModel(eqx.Module):
    """Abstract base of sequence models with global variables g.

        z_1 ~ p(z_1 | g),        z_t ~ p(z_t | z_{t-1}, g),        x_t ~ p(x_t | z_t, g)

    A subclass sets the class attributes `state` and `observed`, the names of the two sites (`observed` is also the data
    argument), and defines the four methods. An instance is an ordinary NumPyro program whose sites are in the plate
    `time`, so any block can update it; `SequenceBlock` updates it step by step.

    Examples:
        >>> class Walk(pg.StateSpaceModel):
        ...     state, observed = "z", "x"
        ...     def globals(self):
        ...         return numpyro.sample("speed", dist.Normal(0.0, 1.0))
        ...     def initial(self, globals):
        ...         return dist.Normal(0.0, 1.0)
        ...     def transition(self, previous, globals):
        ...         return dist.Normal(previous + globals, 1.0)
        ...     def emission(self, state, globals):
        ...         return dist.Normal(state, 0.5)
        >>> trace = numpyro.handlers.trace(numpyro.handlers.seed(Walk(), key)).get_trace(x=np.zeros(5))
        >>> trace["z"]["value"].shape
        (5,)
    """

    state: ClassVar[str]
    observed: ClassVar[str]

    @abstractmethod
    def globals(self) -> Any:
        """A NumPyro program that samples the global sites; its return value is passed to the other methods."""

    @abstractmethod
    def initial(self, globals: Any) -> dist.Distribution:
        """The distribution p(z_1 | g) of the first state."""

    @abstractmethod
    def transition(self, previous: Any, globals: Any) -> dist.Distribution:
        """The distribution p(z_t | z_{t-1}, g) of a state given the previous one."""

    @abstractmethod
    def emission(self, state: Any, globals: Any) -> dist.Distribution:
        """The distribution p(x_t | z_t, g) of an observation given the state of its step."""

    def __call__(self, **data: Any) -> None:
        for part in ("state", "observed"):
            if not isinstance(getattr(self, part, None), str):
                raise ValueError(f"{type(self).__name__}.{part} must name a site; set it on the class")
        if self.observed not in data:
            raise ValueError(f"{type(self).__name__} observes '{self.observed}', but the data are {sorted(data)}")
        observed = data[self.observed]
        shared = self.globals()
        with numpyro.plate(TIME, observed.shape[0]):
            states = numpyro.sample(self.state, Chain(self, shared, observed.shape[0]))
            numpyro.sample(self.observed, Emissions(self, states, shared), obs=observed)


def one_event(distribution: dist.Distribution) -> Any:
    """A distribution with all its axes as event axes, so that one step is one draw."""
    return distribution.to_event(len(distribution.batch_shape))


def where_exists(exists: Any, value: Any, distribution: Any) -> Any:
    """A value where it exists, elsewhere some value inside the distribution's support.

    A blank state such as zero may be outside the support. `jnp.where` would hide its log-probability, but not the NaN in
    its gradient.
    """
    return jnp.where(exists, value, stop_gradient(_inside(distribution)))


def _inside(distribution: Any) -> Array:
    """Some value inside a support: the image of zero, or the least value of a discrete one."""
    support = distribution.support
    if distribution.is_discrete:
        least = getattr(getattr(support, "base_constraint", support), "lower_bound", 0)
        return jnp.broadcast_to(jnp.asarray(least), distribution.event_shape)
    bijection = biject_to(support)
    return jnp.asarray(bijection(jnp.zeros(bijection.inverse_shape(distribution.event_shape))))


class Chain(dist.Distribution):
    """All states of a sequence as one site, with log-probability log p(z_t | z_{t-1}, g) at every step.

    The steps are a batch axis, so that padded steps can be masked. They are not independent: samplers detect that when
    they are built, and weigh ordinary blocks of states as a whole.
    """

    def __init__(self, model: StateSpaceModel, shared: Any, num_steps: int):
        self._first = one_event(model.initial(shared))
        self._model, self._shared = model, shared
        self.has_enumerate_support = self._first.has_enumerate_support
        super().__init__((num_steps,), self._first.event_shape)

    @property
    def family(self) -> str:
        """The name that `APG.describe` shows."""
        return f"chain of {family(self._first)}"

    @property
    def support(self) -> Any:
        return self._first.support

    def enumerate_support(self, expand: bool = True) -> Array:
        del expand
        return self._first.enumerate_support(expand=False)

    def _next(self, previous: Array) -> Any:
        return one_event(self._model.transition(previous, self._shared))

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        return _samples(self._sample, key, sample_shape)

    def _sample(self, key: PRNGKey) -> Array:
        keys = jax.random.split(key, self.batch_shape[0])
        start = self._first.sample(keys[0])

        def step(previous: Array, key: PRNGKey) -> tuple[Array, Array]:
            state = self._next(previous).sample(key).astype(previous.dtype)
            return state, state

        return jnp.concatenate([start[None], jax.lax.scan(step, start, keys[1:])[1]])

    def log_prob(self, value: Any, intermediates: Any = None) -> Float[Array, " step"]:
        del intermediates
        first = self._first.log_prob(value[0])
        rest = jax.vmap(lambda previous, state: self._next(previous).log_prob(state))(value[:-1], value[1:])
        return jnp.concatenate([first[None], rest])


class NextState(dist.Distribution):
    """The distribution of a state given the previous one, or of the first state if there is none."""

    def __init__(self, model: StateSpaceModel, previous: Any, exists: Any, shared: Any):
        self._first = one_event(model.initial(shared))
        self._later = one_event(model.transition(where_exists(exists, previous, self._first), shared))
        self._exists = exists
        super().__init__((), self._first.event_shape)

    @property
    def support(self) -> Any:
        first, later = self._first.support, self._later.support
        if jax.tree.structure(first) != jax.tree.structure(later):
            return first
        return jax.tree.map(lambda a, b: jnp.where(self._exists, b, a), first, later)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        return jnp.where(self._exists, self._later.sample(key, sample_shape), self._first.sample(key, sample_shape))

    def log_prob(self, value: Any, intermediates: Any = None) -> Float[Array, ""]:
        del intermediates
        return jnp.where(self._exists, self._later.log_prob(value), self._first.log_prob(value))


class Emissions(dist.Distribution):
    """The observations of all steps as one site, with log-probability log p(x_t | z_t, g) at every step."""

    def __init__(self, model: StateSpaceModel, states: Any, shared: Any):
        self._states = states
        self._emission: Callable[[Any], Any] = lambda state: one_event(model.emission(state, shared))
        self._one = self._emission(states[0])
        super().__init__((states.shape[0],), self._one.event_shape)

    @property
    def family(self) -> str:
        """The name that `APG.describe` shows."""
        return family(self._one)

    @property
    def support(self) -> Any:
        return self._one.support

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        def once(key: PRNGKey) -> Array:
            keys = jax.random.split(key, self.batch_shape[0])
            return jax.vmap(lambda key, state: self._emission(state).sample(key))(keys, self._states)

        return _samples(once, key, sample_shape)

    def log_prob(self, value: Any, intermediates: Any = None) -> Float[Array, " step"]:
        del intermediates
        return jax.vmap(lambda state, observed: self._emission(state).log_prob(observed))(self._states, value)


def _samples(once: Callable[[PRNGKey], Array], key: PRNGKey, shape: tuple[int, ...]) -> Array:
    if not shape:
        return once(key)
    draws = jax.vmap(once)(jax.random.split(key, shape).reshape(-1))
    return draws.reshape(*shape, *draws.shape[1:])
