"""Published reference posteriors of real data (posteriordb, stan-dev), against training-free samplers."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from tools.gallery.measures import weighted_draws
from tools.gallery.moments import Values

import popgibbs as pg
from examples import eight_schools

NAMES = {
    "eight_schools-eight_schools_noncentered": "eight_schools",
    "low_dim_gauss_mix-low_dim_gauss_mix": "low_dim_gauss_mix",
    "sblri-blr": "sblri-blr",
}


def mixture(y):
    """Two Gaussians; the reference orders the means, which a sampler of unordered ones does afterwards."""
    share: Any = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    with numpyro.plate("components", 2):
        mu: Any = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        sigma: Any = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("points", len(y)):
        c: Any = numpyro.sample("c", dist.Categorical(probs=jnp.stack([share, 1 - share])))
        numpyro.sample("y", dist.Normal(mu[c], sigma[c]), obs=y)


def regression(X, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([X.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10.0))
    with numpyro.plate("points", len(y)):
        numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def _ordered(draws: Values) -> dict[str, np.ndarray]:
    order = np.argsort(draws["mu"], axis=1)
    swapped = order[:, 0] == 1
    by_mean = {name: np.take_along_axis(np.asarray(draws[name]), order, 1) for name in ("mu", "sigma")}
    return {**by_mean, "theta": np.where(swapped, 1 - draws["theta"], draws["theta"])}


@dataclass(frozen=True)
class Published:
    model: Any
    axes: dict[str, Any]
    floats: tuple[str, ...]  # the model's arguments among the data
    canonical: Callable[[Values], dict[str, Any]] = dict


MODELS = {
    "eight_schools": Published(eight_schools.model, eight_schools.AXES, ("y", "sigma")),
    "low_dim_gauss_mix": Published(mixture, {"y": "points"}, ("y",), _ordered),
    "sblri-blr": Published(regression, {"X": ("points", None), "y": "points"}, ("X", "y")),
}


def compare(name: str, entry: dict[str, Any], num_populations: int, sampling: dict[str, Any]) -> dict[str, Any]:
    """Errors of means and ratios of standard deviations by parameter, and the least number of effective draws."""
    published = MODELS[name]
    instance = {argument: np.asarray(entry["data"][argument], np.float32) for argument in published.floats}
    sampler = pg.APG(published.model, data=published.axes, example=instance)
    posterior = sampler.sample(jax.random.key(0), [instance], num_populations=num_populations, **sampling)
    draws, weights = weighted_draws(posterior, 0)
    draws = published.canonical(draws)
    by_population = weights.reshape(num_populations, -1)
    rows = {}
    for label, reference in entry["reference"].items():
        site, _, index = label.rstrip("]").partition("[")
        values = np.asarray(draws[site], float).reshape(len(weights), -1)[:, int(index or 1) - 1]
        mean = weights @ values
        variance = weights @ (values - mean) ** 2
        means = np.sum(by_population * values.reshape(num_populations, -1), axis=1) / by_population.sum(axis=1)
        rows[label] = {
            "error": float((mean - reference["mean"]) / reference["sd"]),
            "sd_ratio": float(np.sqrt(variance) / reference["sd"]),
            # Populations are independent, so that the spread of their means says how many draws they are worth.
            "effective": float(num_populations * variance / np.var(means, ddof=1)),
        }
    return {
        "name": name,
        "parameters": rows,
        "error": max(abs(row["error"]) for row in rows.values()),
        "sd_ratio": max((row["sd_ratio"] for row in rows.values()), key=lambda ratio: abs(ratio - 1)),
        "effective": min(row["effective"] for row in rows.values()),
        "log_evidence": float(posterior.log_evidence[0]),
        "acceptance": {
            block: float(posterior.acceptance[..., 1:, place].mean()) for place, block in enumerate(posterior.blocks)
        },
    }


def read(path: Path) -> dict[str, Any]:
    """The published posteriors by short name."""
    found = json.loads(path.read_text())
    return {short: found[full] for full, short in NAMES.items()}
