"""References by quadrature over the hyperparameters, with the other sites integrated in closed form, in float64."""

import numpy as np
from scipy import stats
from scipy.special import gammaln, logsumexp
from tools.gallery.moments import Moments, Values


def eight_schools(instance: Values, num_points: int = 4_000) -> Moments:
    """Given τ all is Gaussian, so that one integral is left, over log τ."""
    y, sigma = (np.asarray(instance[name], float) for name in ("y", "sigma"))
    tau = np.exp(np.linspace(np.log(1e-5), np.log(1e8), num_points))[:, None]
    variance = sigma**2 + tau**2
    precision = 1 / 25 + np.sum(1 / variance, axis=1)
    mu = np.sum(y / variance, axis=1) / precision
    log_marginal = -0.5 * np.sum(np.log(2 * np.pi * variance) + y**2 / variance, axis=1)
    log_marginal += 0.5 * precision * mu**2 - 0.5 * np.log(25 * precision)
    log_p = log_marginal + stats.halfcauchy.logpdf(tau[:, 0], scale=5) + np.log(tau[:, 0])
    shrink = sigma**2 / variance  # the weight of μ in the mean of θ
    theta = (1 - shrink) * y + shrink * mu[:, None]
    theta_variance = (1 - shrink) * sigma**2 + shrink**2 / precision[:, None]
    step = np.log(tau[1, 0] / tau[0, 0])
    conditional = {
        "mu": (mu[:, None], 1 / precision[:, None]),
        "tau": (tau, np.zeros_like(tau)),
        "theta": (theta, theta_variance),
    }
    return _averaged(log_p + np.log(step), conditional)


def gamma_poisson(instance: Values, num_points: int = 300) -> Moments:
    """Given a and b the rates are gamma distributed; the integral is over log a and log b."""
    y, exposure = (np.asarray(instance[name], float) for name in ("y", "exposure"))
    grid = np.linspace(-6.0, 4.2, num_points)
    a, b = (np.exp(axis).reshape(-1, 1) for axis in np.meshgrid(grid, grid))
    log_p = np.zeros(len(a))
    for count, time in zip(y, exposure, strict=True):
        log_p += (gammaln(a + count) - gammaln(a) - gammaln(count + 1) + a * np.log(b))[:, 0]
        log_p += (count * np.log(time) - (a + count) * np.log(b + time))[:, 0]
    for axis in (a, b):
        log_p += (stats.gamma.logpdf(axis, 3) + np.log(axis))[:, 0]
    conditional = {
        "a": (a, np.zeros_like(a)),
        "b": (b, np.zeros_like(b)),
        "rate": ((a + y) / (b + exposure), (a + y) / (b + exposure) ** 2),
    }
    return _averaged(log_p + 2 * np.log(grid[1] - grid[0]), conditional)


def _averaged(log_p: np.ndarray, conditional: dict[str, tuple[np.ndarray, np.ndarray]]) -> Moments:
    """Moments over the points of a grid, from the conditional means and variances at each."""
    log_evidence = logsumexp(log_p)
    weights = np.exp(log_p - log_evidence)
    mean = {name: weights @ centre for name, (centre, _) in conditional.items()}
    sd = {
        name: np.sqrt(weights @ (variance + (centre - mean[name]) ** 2))
        for name, (centre, variance) in conditional.items()
    }
    return Moments({k: v[None] for k, v in mean.items()}, {k: v[None] for k, v in sd.items()}, np.array([log_evidence]))
