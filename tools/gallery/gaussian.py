"""The reference of probabilistic PCA, in closed form and float64."""

from typing import Any

import numpy as np
from scipy import stats
from tools.gallery.moments import Moments, Values


def ppca(instance: Values, model: Any, noise: float) -> Moments:
    """z and x are jointly Gaussian."""
    x, weight, bias = (np.asarray(array, float) for array in (instance["x"], model.weight, model.bias))
    covariance = np.linalg.inv(np.eye(len(weight)) + weight @ weight.T / noise**2)
    mean = (x - bias) @ weight.T @ covariance / noise**2
    marginal = weight.T @ weight + noise**2 * np.eye(len(bias))
    log_p = stats.multivariate_normal.logpdf(x, bias, marginal)  # pyright: ignore[reportArgumentType]
    sd = np.broadcast_to(np.sqrt(np.diag(covariance)), mean.shape)
    return Moments({"z": mean.reshape(1, -1)}, {"z": sd.reshape(1, -1)}, np.array([log_p.sum()]))
