"""Means and standard deviations of named quantities, and the quantities that do not depend on labels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Values = Mapping[str, Any]
Quantities = dict[str, np.ndarray]  # by name, axes (draw, number)


@dataclass(frozen=True)
class Moments:
    """Posterior moments of one or more instances.

    Attributes:
        mean: Means by quantity, with axes (instance, number).
        sd: Standard deviations, likewise.
        log_evidence: log p(x) by instance, if it is known.
        reliable: Which instances may be compared with; references that have not converged may not.
    """

    mean: dict[str, np.ndarray]
    sd: dict[str, np.ndarray]
    log_evidence: np.ndarray | None = None
    reliable: np.ndarray | None = None

    @classmethod
    def stack(cls, parts: "list[Moments]") -> "Moments":
        """The moments of all instances, from those of each."""

        def joined(name: str) -> Any:
            found = [getattr(part, name) for part in parts]
            if found[0] is None:
                return None
            if isinstance(found[0], dict):
                return {key: np.concatenate([one[key] for one in found]) for key in found[0]}
            return np.concatenate(found)

        return cls(joined("mean"), joined("sd"), joined("log_evidence"), joined("reliable"))


def continuous(latents: Values) -> Quantities:
    """Every latent number that is not discrete."""
    arrays = {name: np.asarray(values) for name, values in latents.items()}
    return {name: values.reshape(len(values), -1) for name, values in arrays.items() if values.dtype.kind == "f"}


def gaussian_components(latents: Values) -> Quantities:
    """The means in the order of their first coordinate, and the density of the mixture at fixed points."""
    mu, tau = np.asarray(latents["mu"]), np.asarray(latents["tau"])
    order = np.argsort(mu[..., 0], axis=1)
    at = np.stack(np.meshgrid([-4.0, 0.0, 4.0], [-4.0, 0.0, 4.0]), axis=-1).reshape(-1, 1, 2)
    log_p = 0.5 * np.log(tau / (2 * np.pi))[:, None] - 0.5 * tau[:, None] * (at - mu[:, None]) ** 2
    density = np.exp(log_p.sum(axis=-1)).mean(axis=-1)
    return {"mu": np.take_along_axis(mu, order[..., None], 1).reshape(len(mu), -1), "density": density}


def poisson_components(latents: Values) -> Quantities:
    """Rates in increasing order, and the weights in that order."""
    rate, weights = np.asarray(latents["rate"]), np.asarray(latents["weights"])
    order = np.argsort(rate, axis=1)
    return {"rate": np.take_along_axis(rate, order, 1), "weights": np.take_along_axis(weights, order, 1)}


def words_by_document(latents: Values) -> Quantities:
    """The probability of each word in each document, θ φ."""
    probability = np.asarray(latents["theta"])[:, :, 0] @ np.asarray(latents["phi"])
    return {"words": probability.reshape(len(probability), -1)}


def moments(quantities: Quantities, weights: np.ndarray | None = None) -> Moments:
    """The weighted moments of the draws of one instance."""
    mean = {name: np.average(draws, axis=0, weights=weights) for name, draws in quantities.items()}
    variance = {
        name: np.average((draws - mean[name]) ** 2, axis=0, weights=weights) for name, draws in quantities.items()
    }
    return Moments({k: v[None] for k, v in mean.items()}, {k: np.sqrt(v)[None] for k, v in variance.items()})


Invariant = Callable[[Values], Quantities]
