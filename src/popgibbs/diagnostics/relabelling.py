"""One labelling of exchangeable components for all draws of an instance.

Like the algorithm of Stephens (2000) for normal components: draws are weighted, values are replaced by their ranks, and

    order_d = argmax over permutations of Σ_j log Normal(value_{d, order(j)} | mean_j, variance_j)

alternates with the weighted means and variances of the reordered draws until nothing changes. The draw with the highest
log joint gives the first means.
"""

import equinox as eqx
import numpy as np
from scipy.optimize import linear_sum_assignment

from popgibbs.model import Components, Site
from popgibbs.smc import Population

_MOST_ROUNDS = 100
_LEAST_VARIANCE = 1e-3  # of ranks between 0 and 1, so that a few equal draws do not fix a component


def relabelled(
    population: Population,
    components: Components,
    sites: tuple[Site, ...],
    weights: np.ndarray,
    log_joint: np.ndarray,
) -> Population:
    """Populations of several instances with one labelling for all particles of an instance.

    All arrays have axes (instance, population, particle, ...); a draw is a particle of any population.
    """
    shape = weights.shape
    draws = (shape[0], shape[1] * shape[2])
    latents = {name: np.asarray(value) for name, value in population.particles.latents.items()}
    log_probs = {name: np.asarray(value) for name, value in population.particles.log_probs.items()}
    numbers = [_by_component(latents[name], axes, components.size) for name, axes in components.axes]
    values = np.concatenate(numbers, axis=-1).reshape(*draws, components.size, -1)
    # Where no particle has weight, all count alike.
    weights = np.where(weights.any(axis=(1, 2), keepdims=True), weights, 1.0)
    by_instance = zip(values, weights.reshape(draws), log_joint.reshape(draws), strict=True)
    orders = np.stack([common_labelling(*one) for one in by_instance]).reshape(*shape, components.size)

    for name, axes in components.axes:
        for axis in axes:
            latents[name] = _reordered(latents[name], orders, axis)
    places = np.argsort(orders, axis=-1)
    for name in components.labels:
        labels = latents[name]
        found = np.take_along_axis(places, labels.reshape(*shape, -1), axis=-1)
        latents[name] = found.reshape(labels.shape).astype(labels.dtype)
    for site in sites:
        if components.plate is not None and (axis := site.axis(components.plate)) is not None:
            log_probs[site.name] = _reordered(log_probs[site.name], orders, axis)
    return eqx.tree_at(lambda at: (at.particles.latents, at.particles.log_probs), population, (latents, log_probs))


def common_labelling(values: np.ndarray, weights: np.ndarray, log_joint: np.ndarray) -> np.ndarray:
    """The component of each draw that belongs in each place.

    Args:
        values: The numbers of every component, with axes (draw, component, number).
        weights: The weights of the draws, not all zero.
        log_joint: log p(x, z) of the draws.

    Returns:
        With axes (draw, place), the component in each place. Places are in the order of the mean rank of the components'
        first number, so the result does not depend on the labels in `values`.
    """
    from scipy.stats import rankdata  # here, because it is slow to import

    num_draws, size, width = values.shape
    ranks = rankdata(values.reshape(-1, width), axis=0).reshape(values.shape) / (num_draws * size)
    weights = weights / weights.sum()
    start = np.argmax(np.where(weights > 0, log_joint, -np.inf))
    mean, variance = ranks[start], np.ones((size, width))
    orders = np.zeros((num_draws, size), int)
    for _ in range(_MOST_ROUNDS):
        before, orders = orders, _orders(ranks, mean, variance)
        placed = np.take_along_axis(ranks, orders[..., None], axis=1)
        mean = np.einsum("d,djf->jf", weights, placed)
        variance = np.maximum(np.einsum("d,djf->jf", weights, (placed - mean) ** 2), _LEAST_VARIANCE)
        if np.array_equal(orders, before):
            break
    return orders[:, np.argsort(mean[:, 0], kind="stable")]


def _by_component(value: np.ndarray, axes: tuple[int, ...], size: int) -> np.ndarray:
    """The numbers of each component, with axes (instance, population, particle, component, number)."""
    if len(axes) == 2:  # a number for every pair of components: those of a component with itself
        value, axes = np.diagonal(value, axis1=axes[0], axis2=axes[1]), (-1,)
    moved = np.moveaxis(value, axes[0], 3)
    return moved.reshape(*moved.shape[:3], size, -1)


def _reordered(array: np.ndarray, orders: np.ndarray, axis: int) -> np.ndarray:
    """An array of every particle with the entries of one axis, counted from the right, in that particle's order."""
    laid = [1] * (array.ndim - 3)
    laid[axis] = orders.shape[-1]
    return np.take_along_axis(array, orders.reshape(*orders.shape[:3], *laid), axis=axis)


def _orders(values: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """The most probable assignment of each draw's components to places."""
    precision = 1 / variance
    cost = values**2 @ precision.T - 2 * values @ (mean * precision).T
    cost += np.sum(mean**2 * precision + np.log(variance), axis=1)  # (draw, component, place)
    # Where each place has another favourite, there is no conflict to resolve.
    orders = np.argmin(cost, axis=1)
    conflicts = np.flatnonzero(np.any(np.sort(orders, axis=1) != np.arange(values.shape[1]), axis=1))
    for draw in conflicts:
        orders[draw] = linear_sum_assignment(cost[draw].T)[1]
    return orders
