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
    """Apply a network to each point: T_n = network(x_n), or network([x_n, z_n]) for several inputs.

    Args:
        network: a function of one point's features, such as `eqx.nn.MLP`.
        *inputs: one or more arrays, (point, feature); their features are concatenated.

    Returns:
        The network's outputs, (point, *out).

    Examples:
        >>> network = eqx.nn.MLP(2 + 3, 4, width_size=8, depth=1, key=key)
        >>> x, one_hot = jnp.ones((7, 2)), jnp.ones((7, 3))
        >>> pg.statistics.pointwise(network, x, one_hot).shape
        (7, 4)
    """
    points = jnp.concatenate(inputs, axis=-1)
    return _rows_through(network, points) if _is_plain(network) else jax.vmap(network)(points)


def _is_plain(network: Any) -> bool:
    """Whether the network is an MLP of vectors whose activations have no parameters."""
    if not isinstance(network, eqx.nn.MLP) or "scalar" in (network.in_size, network.out_size):
        return False
    return not jax.tree.leaves(eqx.filter((network.activation, network.final_activation), eqx.is_array))


def _rows_through(network: Any, rows: Float[Array, "point _"]) -> Float[Array, "point _"]:
    """The same numbers as `vmap(network)`, by products `rows @ weight.T` that keep the point axis first.

    `weight @ point` puts the feature axis first, and transposing hidden layers then takes a third of a training step.
    """
    activations = [network.activation] * (len(network.layers) - 1) + [network.final_activation]
    for layer, activation in zip(network.layers, activations, strict=True):
        rows = rows @ layer.weight.T
        rows = activation(rows if layer.bias is None else rows + layer.bias)
    return rows


def pool(statistics: Float[Array, "point *rest"], mask: Bool[Array, " point"]) -> Float[Array, "*rest"]:
    """Σ_n T_n over the real points, those that are not padding.

    Args:
        statistics: T, (point, *rest).
        mask: whether each point is real, (point,): `data.mask["points"]` in a proposal.

    Returns:
        The sum, (*rest).

    Examples:
        >>> float(pg.statistics.pool(jnp.array([1.0, 2.0, 4.0]), jnp.array([True, True, False])))
        3.0
    """
    shaped = mask.reshape(mask.shape + (1,) * (statistics.ndim - 1))
    return jnp.sum(jnp.where(shaped, statistics, 0.0), axis=0)


def mean_pool(statistics: Float[Array, "point *rest"], mask: Bool[Array, " point"]) -> Float[Array, "*rest"]:
    """The mean of T_n over the real points, those that are not padding; 0 if there are none.

    Args:
        statistics: T, (point, *rest).
        mask: whether each point is real, (point,): `data.mask["points"]` in a proposal.

    Returns:
        The mean, (*rest).

    Examples:
        >>> float(pg.statistics.mean_pool(jnp.array([1.0, 2.0, 4.0]), jnp.array([True, True, False])))
        1.5
    """
    return pool(statistics, mask) / jnp.maximum(jnp.sum(mask), 1)


def pick(values: Float[Array, "component *rest"], component: Int[Array, " point"]) -> Float[Array, "point *rest"]:
    """`values[component]` for a few components, by comparison: on CPU a gather takes several times as long.

    Args:
        values: one entry per component, (component, *rest).
        component: the component of each point, (point,).

    Returns:
        The entry of each point's component, (point, *rest); zeros where `component` names none.

    Examples:
        >>> mu = jnp.array([[0.0, 0.0], [5.0, 6.0]])
        >>> pg.statistics.pick(mu, jnp.array([1, 0, 1])).tolist()
        [[5.0, 6.0], [0.0, 0.0], [5.0, 6.0]]
    """
    return choose(list(values), component.reshape(component.shape + (1,) * (values.ndim - 1)))


def choose(columns: Sequence[Float[Array, "..."]], component: Int[Array, "..."]) -> Float[Array, "..."]:
    """Take each element from the array of the component that `component` names there.

    Like `pick`, for values that differ between points as well as between components.

    Args:
        columns: one array per component; shapes are broadcast.
        component: the component of each element.

    Returns:
        An array of the broadcast shape.

    Examples:
        >>> columns = [jnp.array([1.0, 2.0, 3.0]), jnp.array([10.0, 20.0, 30.0])]
        >>> pg.statistics.choose(columns, jnp.array([0, 1, 0])).tolist()
        [1.0, 20.0, 3.0]
    """
    return sum((jnp.where(component == m, column, 0.0) for m, column in enumerate(columns)), start=jnp.zeros(()))


def additive_update(prior: Any, statistics: tuple[Array, ...], mask: Bool[Array, " point"]) -> Any:
    """The member of the prior's family with natural parameters λ̃ = λ + Σ_n T_n.

    The conjugate update, with statistics T that a network may have computed (the paper's neural sufficient statistics).

    Args:
        prior: a member of an exponential family of `popgibbs.statistics`, with parameters of shape (*rest).
        statistics: one array per natural parameter of the prior, each (point, *rest).
        mask: whether each point is real, (point,): `data.mask["points"]` in a proposal.

    Returns:
        A member of the same family.

    Examples:
        Three coin flips update a uniform Beta prior:

        >>> flips, mask = jnp.array([1.0, 1.0, 0.0]), jnp.ones(3, bool)
        >>> posterior = pg.statistics.additive_update(pg.statistics.Beta(a=1.0, b=1.0), (flips, 1 - flips), mask)
        >>> float(posterior.a), float(posterior.b)
        (3.0, 2.0)
    """
    pooled = (natural + pool(statistic, mask) for natural, statistic in zip(prior.natural(), statistics, strict=True))
    return type(prior).from_natural(tuple(pooled))


def conjugate_normal_gamma(
    prior: NormalGamma,
    values: Float[Array, "point dim"],
    shares: Float[Array, "point component"],
    mask: Bool[Array, " point"],
) -> NormalGamma:
    """The posterior of each component's mean and precision if point n belonged to component m with weight `shares[n, m]`.

    Appendix F.1 of the paper, with the sum of squares about the component's mean rather than the difference
    Σx² − (Σx)²/N, which cancels in float32. A component without points keeps the prior.

    Args:
        prior: parameters that broadcast to (component, dim).
        values: the points, or statistics in their place, (point, dim).
        shares: non-negative weights, (point, component): one-hot assignments or their probabilities.
        mask: whether each point is real, (point,): `data.mask["points"]` in a proposal.

    Returns:
        A `NormalGamma` with parameters of shape (component, dim).

    Examples:
        >>> prior = pg.statistics.NormalGamma(loc=0.0, count=1.0, concentration=2.0, rate=2.0)
        >>> x, shares = jnp.array([[2.0], [4.0], [8.0]]), jax.nn.one_hot(jnp.array([0, 0, 1]), 2)
        >>> posterior = pg.statistics.conjugate_normal_gamma(prior, x, shares, jnp.ones(3, bool))
        >>> posterior.count.tolist(), posterior.loc.tolist()
        ([[3.0], [2.0]], [[2.0], [4.0]])
    """
    # Points last: reductions along the last axis are several times faster on CPU.
    shares = jnp.where(mask[:, None], shares, 0.0).T[:, None, :]
    count = jnp.sum(shares, axis=-1)
    # Large enough that its square, by which the gradient divides, does not underflow.
    safe = jnp.maximum(count, 1e-12)
    total_value = jnp.sum(shares * values.T, axis=-1)
    mean = total_value / safe
    # The sum of squares is least about their own mean, so its gradient with respect to the mean is zero.
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
    """A network with one hidden layer that gives every pair of a point and a component a number, such as a logit.

    The same function as a network on the concatenation of the two, but its first layer is split into a part for the
    points, which is computed once for all particles, and a part for the components.

    Args:
        point_size: features per point.
        component_size: features per component.
        hidden: width of the hidden layer.
        key: a random key for the weights.

    Examples:
        >>> score = pg.statistics.Pairwise(2, 4, hidden=8, key=key)
        >>> score(jnp.ones((5, 2)), jnp.ones((3, 4))).shape
        (5, 3)
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
        """The number of every pair, (point, component)."""
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
    """A network with one hidden layer on the difference point − component of every pair.

    The same function as a network on the difference, but its first layer runs once per point, for all particles, and
    once per component. Outputs are separate arrays: on CPU a short last axis is slow.

    Args:
        size: features of a point and of a component.
        hidden: width of the hidden layer.
        num_outputs: numbers per pair.
        key: a random key for the weights.

    Examples:
        >>> network = pg.statistics.Offsets(2, hidden=8, num_outputs=4, key=key)
        >>> outputs = network(jnp.ones((5, 2)), jnp.ones((3, 2)))
        >>> len(outputs), len(outputs[0]), outputs[0][0].shape
        (3, 4, (5,))
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
        """One list per component, with one array over the points per output."""
        assert self.second.bias is not None
        by_point = jax.vmap(self.first)(points)
        hidden = [jnp.tanh(by_point - offset) for offset in components @ self.first.weight.T]
        outputs = list(zip(self.second.weight, self.second.bias, strict=True))
        return [[row @ weight + bias for weight, bias in outputs] for row in hidden]


def spread_points(
    key: Key[Array, ""], points: Float[Array, "point dim"], mask: Bool[Array, " point"], num: int
) -> Float[Array, "num dim"]:
    """Draw points far from each other: each in proportion to its squared distance from the nearest one drawn before.

    This is the seeding of k-means++ (Arthur and Vassilvitskii, 2007). It gives starting points to components that are
    otherwise exchangeable.

    Args:
        key: a random key; in a proposal `numpyro.prng_key()`, so that every particle draws its own points.
        points: (point, dim).
        mask: whether each point is real, (point,): `data.mask["points"]` in a proposal.
        num: how many to draw.

    Returns:
        Points among the real ones, (num, dim).

    Examples:
        >>> points = jnp.array([[0.0, 0.0], [0.0, 0.0], [9.0, 9.0]])
        >>> seeds = pg.statistics.spread_points(key, points, jnp.ones(3, bool), 2)
        >>> sorted(seeds.tolist())
        [[0.0, 0.0], [9.0, 9.0]]
    """
    everywhere = jnp.where(mask, 1.0, 0.0)

    def choose(distance: Array, uniform: Array) -> tuple[Array, Array]:
        shares = jnp.where(mask, distance, 0.0)
        # Distances are infinite before the first draw, and all zero once the draws cover every point: draw uniformly.
        usable = (jnp.sum(shares) > 0) & (jnp.sum(shares) < jnp.inf)
        shares = jnp.where(usable, shares, everywhere)
        cumulative = jnp.cumsum(shares)
        last = jnp.argmax(jnp.where(mask, jnp.arange(mask.shape[0]), -1))
        point = points[jnp.minimum(jnp.sum(uniform * cumulative[-1] >= cumulative), last)]
        return jnp.minimum(distance, jnp.sum((points - point) ** 2, axis=-1)), point

    return jax.lax.scan(choose, jnp.full(mask.shape, jnp.inf), jax.random.uniform(key, (num,)))[1]
