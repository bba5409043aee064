"""Log evidence of small mixtures: a sum over all assignments, with everything else integrated in closed form."""

from collections.abc import Callable
from itertools import product

import numpy as np
from scipy.special import gammaln
from tools.gallery.gibbs import normal_gamma
from tools.gallery.moments import Values

LogJoint = Callable[[Values, np.ndarray], np.ndarray]  # log p(data, assignments), for each row of assignments


def log_evidence(log_joint: LogJoint, instance: Values) -> float:
    """The sum over the assignments of all data of an instance with one argument."""
    (data,) = instance.values()
    num_points = len(data) if log_joint is not lda else np.size(data)
    return float(np.logaddexp.reduce(log_joint(instance, assignments(num_points))))


def assignments(num_points: int) -> np.ndarray:
    """Every assignment of points to three components."""
    return np.array(list(product(range(3), repeat=num_points)))


def gaussian_mixture(instance: Values, c: np.ndarray) -> np.ndarray:
    x = np.asarray(instance["x"], float)
    a, b, kappa, _ = normal_gamma(np.broadcast_to(x, (len(c), *x.shape)), np.eye(3)[c])
    log_p = gammaln(a) + 2 * np.log(2) - a * np.log(b) + 0.5 * np.log(0.1 / kappa)
    log_p -= 0.5 * (kappa - 0.1) * np.log(2 * np.pi)
    return log_p.sum(axis=(1, 2)) - len(x) * np.log(3)


def poisson_mixture(instance: Values, c: np.ndarray) -> np.ndarray:
    y = np.asarray(instance["y"], float)
    one_hot = np.eye(3)[c]
    count, total = one_hot.sum(axis=1), one_hot.transpose(0, 2, 1) @ y
    log_p = gammaln(2 + total) + 2 * np.log(0.2) - (2 + total) * np.log(0.2 + count)
    return log_p.sum(axis=1) + _dirichlet_categorical(count, 2.0) - np.sum(gammaln(y + 1))


def lda(instance: Values, z: np.ndarray) -> np.ndarray:
    w = np.asarray(instance["w"])
    one_hot = np.eye(3)[z].reshape(len(z), *w.shape, 3)
    in_topic = np.einsum("rdnk,dnv->rkv", one_hot, np.eye(12)[w])
    log_p = _dirichlet_categorical(one_hot.sum(axis=2), 0.5).sum(axis=1)
    return log_p + _dirichlet_categorical(in_topic, 0.5).sum(axis=1)


def _dirichlet_categorical(count: np.ndarray, concentration: float) -> np.ndarray:
    """Log probability of a sequence with these counts, its probabilities integrated over a symmetric Dirichlet."""
    total = count.shape[-1] * concentration
    each = gammaln(concentration + count) - gammaln(concentration)
    return each.sum(axis=-1) + gammaln(total) - gammaln(total + count.sum(axis=-1))
