"""A proposal for finite and continuous sites together: the finite ones with the others integrated out, then these.

    q(c = v) ∝ ∫ p(v, h) dh  by Laplace's method, for every joint value v of the finite sites,    q(h | c)

Updated in turns, such sites get stuck where a value of one leaves only one value of the other possible: a point on the
wrong curve stays there, because no other curve has anything at its place.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Int

from popgibbs._random import unrolled
from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import BlockConditional, Conditional, JointValues, Partition
from popgibbs.proposals.base import BoundKernel, Gaussians, Kernel
from popgibbs.proposals.laplace import Laplace
from popgibbs.statistics import Categorical

_UNLIKELY = 0.01  # the share of finite values that are drawn uniformly, because Laplace's method is not exact


class MixedLaplace(Kernel):
    """Finite sites by enumeration, with the continuous sites of the block integrated out; then the continuous ones."""

    from_model: ClassVar[bool] = True
    takes_any_key: ClassVar[bool] = True

    finite: tuple[str, ...] = eqx.field(static=True)
    below: Laplace

    @property
    def summary(self) -> str:
        return f"enumeration of {', '.join(self.finite)}, then {self.below.summary}"

    def gaussians(self, names: tuple[str, ...], partition: Partition) -> Gaussians:
        return self.below.gaussians(tuple(name for name in names if name not in self.finite), partition)

    def with_one_value(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if name in self.finite)

    def bind(self, key: PRNGKey, conditional: Conditional) -> BoundKernel:
        assert isinstance(conditional, BlockConditional)
        return BoundMixed(key, conditional, self)


class BoundMixed(BoundKernel):
    """The proposal at one state of the other sites."""

    def __init__(self, key: PRNGKey, conditional: BlockConditional, kernel: MixedLaplace):
        self.key_finite, self.key_below = jax.random.split(unrolled(key))
        self.conditional, self.kernel = conditional, kernel
        self.finite = tuple(name for name in conditional.names if name in kernel.finite)
        self.below = tuple(name for name in conditional.names if name not in kernel.finite)
        self.joint = JointValues(conditional, self.finite)
        log_mass, self.fits = stop_gradient(jax.vmap(self._fit)(jnp.arange(self.joint.count)))
        log_mass = jnp.where(jnp.isnan(log_mass), -jnp.inf, log_mass).T
        # Where every value is impossible, the particle has no weight and any value will do.
        is_possible = jnp.max(log_mass, axis=-1, keepdims=True) > -jnp.inf
        by_mass = jax.nn.log_softmax(jnp.where(is_possible, log_mass, 0.0), axis=-1)
        uniform = -jnp.log(log_mass.shape[1])
        self.log_q = jnp.logaddexp(by_mass + jnp.log1p(-_UNLIKELY), uniform + jnp.log(_UNLIKELY))

    def draw(self) -> tuple[Values, Elements]:
        choice = jnp.asarray(Categorical(self.log_q).distribution().sample(unrolled(self.key_finite)))
        below, log_q = self._bound_below(choice).draw()
        return {**self.joint.at(choice), **below}, log_q + self._log_q_of(choice)

    def score(self, values: Values) -> Elements:
        choice = self.joint.number(values).astype(int)
        log_q = self._bound_below(choice).score({name: values[name] for name in self.below})
        return log_q + self._log_q_of(choice)

    def _log_q_of(self, choice: Int[Array, " element"]) -> Elements:
        chosen = jnp.take_along_axis(self.log_q, choice[:, None], axis=-1)[:, 0]
        return jnp.where(self.conditional.real, chosen, 0.0)

    def _given(self, finite: Values) -> BlockConditional:
        """The conditional of the continuous sites."""
        given = {**self.conditional.given, **finite}
        return BlockConditional(
            self.conditional.target,
            self.conditional.partition,
            names=self.below,
            given=given,
            initial=self.conditional.initial,
        )

    def _fit(self, number: Int[Array, ""]) -> tuple[Elements, Any]:
        """The mass of one joint value of the finite sites in each element, and the fit of the others given it."""
        finite = self.joint.at(jnp.broadcast_to(number, self.conditional.real.shape))
        given = self._given(finite)
        coordinates = self.kernel.below.coordinates(given)
        fit = self.kernel.below.fit(coordinates)
        # The factors that do not contain the continuous sites.
        centre = coordinates.values(jnp.zeros((coordinates.num_elements, coordinates.size)))
        log_probs = self.conditional.log_probs({**finite, **centre})
        others = {name: value for name, value in log_probs.items() if name not in given.factors}
        return self.kernel.below.log_mass(coordinates, fit) + self.conditional.reduce(others), fit

    def _bound_below(self, choice: Int[Array, " element"]) -> BoundKernel:
        elements = jnp.arange(choice.shape[0])
        fit = jax.tree.map(lambda leaf: leaf[choice, elements], self.fits)
        coordinates = self.kernel.below.coordinates(self._given(self.joint.at(choice)))
        return self.kernel.below.bound(self.key_below, coordinates, fit)
