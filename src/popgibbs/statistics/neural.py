"""Neural sufficient statistics: networks over points, masked pooling, and updates of exponential families.

A proposal for global variables pools statistics of any number of points, λ̃ = λ + Σ_n T(x_n, z_n), so it adapts to the
size of the instance; a proposal for local variables compares each point with each component.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Int, Key

from popgibbs.statistics.families import FEW, NormalGamma

Family = TypeVar("Family")


def pointwise(network: Callable[[Array], Array], *inputs: Float[Array, "point _"]) -> Float[Array, "point *out"]:
    """A network applied to each point; several inputs are joined feature by feature."""
    points = jnp.concatenate(inputs, axis=-1)
    return _rows_through(network, points) if _is_plain(network) else jax.vmap(network)(points)


def _is_plain(network: Any) -> bool:
    """Whether the network is an MLP of whole layers, with activations that learn nothing."""
    if not isinstance(network, eqx.nn.MLP) or "scalar" in (network.in_size, network.out_size):
        return False
    return not jax.tree.leaves(eqx.filter((network.activation, network.final_activation), eqx.is_array))


def _rows_through(network: Any, rows: Float[Array, "point _"]) -> Float[Array, "point _"]:
    """The same numbers as `vmap(network)`, by products `rows @ weight.T` that keep the points first.

    `weight @ point` leaves the features first, and a third of a training step then goes into transposing hidden layers.
    """
    activations = [network.activation] * (len(network.layers) - 1) + [network.final_activation]
    for layer, activation in zip(network.layers, activations, strict=True):
        rows = rows @ layer.weight.T
        rows = activation(rows if layer.bias is None else rows + layer.bias)
    return rows


def pool(statistics: Float[Array, "point *rest"], mask: Bool[Array, " point"]) -> Float[Array, "*rest"]:
    """Σ_n T_n over the real points."""
    shaped = mask.reshape(mask.shape + (1,) * (statistics.ndim - 1))
    return jnp.sum(jnp.where(shaped, statistics, 0.0), axis=0)


def mean_pool(statistics: Float[Array, "point *rest"], mask: Bool[Array, " point"]) -> Float[Array, "*rest"]:
    """The mean of T_n over the real points."""
    return pool(statistics, mask) / jnp.maximum(jnp.sum(mask), 1)


def pick(values: Float[Array, "component *rest"], component: Int[Array, " point"]) -> Float[Array, "point *rest"]:
    """`values[component]` for a few components, by comparison: on CPU a gather takes several times as long."""
    return choose(list(values), component.reshape(component.shape + (1,) * (values.ndim - 1)))


def choose(columns: Sequence[Float[Array, "..."]], component: Int[Array, "..."]) -> Float[Array, "..."]:
    """Of one array a component, each element from the array that `component` names there."""
    return sum((jnp.where(component == m, column, 0.0) for m, column in enumerate(columns)), start=jnp.zeros(()))


def additive_update(prior: Any, statistics: tuple[Array, ...], mask: Bool[Array, " point"]) -> Any:
    """The member of the prior's family with natural parameters λ + Σ_n T_n; one array of statistics for each of λ."""
    pooled = (natural + pool(statistic, mask) for natural, statistic in zip(prior.natural(), statistics, strict=True))
    return type(prior).from_natural(tuple(pooled))


def conjugate_normal_gamma(
    prior: NormalGamma,
    values: Float[Array, "point dim"],
    shares: Float[Array, "point component"],
    mask: Bool[Array, " point"],
) -> NormalGamma:
    """The posterior of each component's mean and precision, were point n its own with weight `shares[n]`.

    The paper's appendix F.1, with the sum of squares about the component's mean rather than the difference
    Σx² − (Σx)²/N, which cancels in float32; a component without points keeps the prior.
    """
    # Points last: reductions along the last axis are several times faster on CPU.
    shares = jnp.where(mask[:, None], shares, 0.0).T[:, None, :]
    count = jnp.sum(shares, axis=-1)
    # Large enough for its square, which the gradient divides by, to be a number.
    safe = jnp.maximum(count, 1e-12)
    total_value = jnp.sum(shares * values.T, axis=-1)
    mean = total_value / safe
    # About their own mean the squares are least, so through the mean they have no gradient.
    squares = jnp.sum(shares * (values.T - stop_gradient(mean)[:, :, None]) ** 2, axis=-1)
    total = prior.count + count
    shrinkage = prior.count * count / total
    return NormalGamma(
        loc=(prior.count * prior.loc + total_value) / total,
        count=jnp.broadcast_to(total, mean.shape),
        concentration=jnp.broadcast_to(prior.concentration + 0.5 * count, mean.shape),
        rate=prior.rate + 0.5 * squares + 0.5 * shrinkage * (mean - prior.loc) ** 2,
    )


class Pairwise(eqx.Module):
    """A network of one hidden layer on every pair of a point and a component, `point × component → number`.

    The same function as a network on their concatenation, but its first layer is split into a part for the points, which
    all particles share, and a part for the components.
    """

    of_point: eqx.nn.Linear
    of_component: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self, point_size: int, component_size: int, hidden: int, *, key: Key[Array, ""]):
        key_point, key_component, key_out = jax.random.split(key, 3)
        self.of_point = eqx.nn.Linear(point_size, hidden, use_bias=False, key=key_point)
        self.of_component = eqx.nn.Linear(component_size, hidden, key=key_component)
        self.out = eqx.nn.Linear(hidden, "scalar", key=key_out)

    def __call__(
        self, points: Float[Array, "point _"], components: Float[Array, "component _"]
    ) -> Float[Array, "point component"]:
        by_point = points @ self.of_point.weight.T
        by_component = jax.vmap(self.of_component)(components)
        assert self.out.bias is not None
        weight, bias = self.out.weight[0], self.out.bias

        def score(component: Float[Array, " hidden"]) -> Float[Array, " point"]:
            return jnp.tanh(by_point + component) @ weight + bias

        if components.shape[0] > FEW:
            return jax.vmap(score, out_axes=-1)(by_component)
        return jnp.stack([score(component) for component in by_component], axis=-1)


class Offsets(eqx.Module):
    """A network of one hidden layer on point − component, for every pair.

    The same function as a network on their difference, but its first layer runs once a point, for all particles, and
    once a component. Outputs come as separate arrays: on CPU a short last axis is slow.
    """

    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __init__(self, size: int, hidden: int, num_outputs: int, *, key: Key[Array, ""]):
        key_first, key_second = jax.random.split(key)
        self.first = eqx.nn.Linear(size, hidden, key=key_first)
        self.second = eqx.nn.Linear(hidden, num_outputs, key=key_second)

    def __call__(
        self, points: Float[Array, "point _"], components: Float[Array, "component _"]
    ) -> list[list[Float[Array, " point"]]]:
        """By component, then by output."""
        assert self.second.bias is not None
        by_point = jax.vmap(self.first)(points)
        hidden = [jnp.tanh(by_point - offset) for offset in components @ self.first.weight.T]
        outputs = list(zip(self.second.weight, self.second.bias, strict=True))
        return [[row @ weight + bias for weight, bias in outputs] for row in hidden]


def spread_points(
    key: Key[Array, ""], points: Float[Array, "point dim"], mask: Bool[Array, " point"], num: int
) -> Float[Array, "num dim"]:
    """Points far from each other, at random: each is drawn in proportion to its squared distance to those before it.

    Starting points for components that are otherwise exchangeable, the seeding of k-means++ (Arthur and Vassilvitskii,
    2007). Every particle draws its own.
    """
    everywhere = jnp.where(mask, 1.0, 0.0)

    def choose(distance: Array, uniform: Array) -> tuple[Array, Array]:
        shares = jnp.where(mask, distance, 0.0)
        # The first has none before it, and points that coincide with those before leave no distance: any will do.
        usable = (jnp.sum(shares) > 0) & (jnp.sum(shares) < jnp.inf)
        shares = jnp.where(usable, shares, everywhere)
        cumulative = jnp.cumsum(shares)
        last = jnp.argmax(jnp.where(mask, jnp.arange(mask.shape[0]), -1))
        point = points[jnp.minimum(jnp.sum(uniform * cumulative[-1] >= cumulative), last)]
        return jnp.minimum(distance, jnp.sum((points - point) ** 2, axis=-1)), point

    return jax.lax.scan(choose, jnp.full(mask.shape, jnp.inf), jax.random.uniform(key, (num,)))[1]
