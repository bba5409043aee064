"""Coverage, and errors against references, from weighted draws."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tools.gallery.moments import Invariant, Moments, Values, moments

_TAIL = 0.05  # outside of a 90% interval, on each side


def weighted_draws(posterior: Any, instance: int) -> tuple[Values, np.ndarray]:
    """The draws of all populations with one leading axis, and their weights; populations count alike."""
    weights = posterior.weights[instance].reshape(-1)
    weights = weights if weights.any() else np.ones_like(weights)  # failed: `degenerate` says so
    draws = {name: values.reshape(-1, *values.shape[2:]) for name, values in posterior[instance].items()}
    return draws, weights / weights.sum()


def inside(draws: np.ndarray, weights: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Whether the value of each number lies in the 90% interval of its draws, which have axes (draw, number)."""
    below = weights @ (draws < value) + 0.5 * (weights @ (draws == value))
    return (below > _TAIL) & (below < 1 - _TAIL)


@dataclass(frozen=True)
class Found:
    """What a posterior says about each instance: moments, and whether intervals cover the generating latents."""

    moments: Moments
    covered: dict[str, np.ndarray]  # by quantity, axes (instance, number)


def measure(posterior: Any, latents: Sequence[Values], quantities: Invariant) -> Found:
    """Moments and coverage of every instance."""
    parts, covered = [], {}
    for index, truth in enumerate(latents):
        draws, weights = weighted_draws(posterior, index)
        found = quantities(draws)
        generating = quantities({name: np.asarray(value)[None] for name, value in truth.items()})
        parts.append(moments(found, weights))
        for name, numbers in found.items():
            covered.setdefault(name, []).append(inside(numbers, weights, generating[name][0]))
    return Found(Moments.stack(parts), {name: np.stack(rows) for name, rows in covered.items()})


def coverage(covered: dict[str, np.ndarray]) -> dict[str, float]:
    """The share of numbers inside their intervals, by quantity and overall."""
    shares = {name: float(rows.mean()) for name, rows in covered.items()}
    return {**shares, "all": float(np.concatenate([rows.ravel() for rows in covered.values()]).mean())}


def errors(ours: Moments, reference: Moments) -> dict[str, Any]:
    """Errors of means in reference standard deviations, and ratios of standard deviations, on reliable instances."""
    count = len(next(iter(reference.mean.values())))
    kept = np.ones(count, bool) if reference.reliable is None else reference.reliable
    rows: dict[str, list[np.ndarray]] = {name: [] for name in ("error", "sd", "reference")}
    rms, ratio = {}, {}
    for name, sd in reference.sd.items():
        sd, own = sd[kept], ours.sd[name][:count][kept]
        error = (ours.mean[name][:count] - reference.mean[name])[kept] / sd
        rms[name] = float(np.sqrt(np.mean(error**2)))
        ratio[name] = float(own.mean() / sd.mean())
        for key, array in {"error": error, "sd": own, "reference": sd}.items():
            rows[key].append(array.ravel())
    error, own, sd = (np.concatenate(parts) for parts in rows.values())
    rms["all"] = float(np.sqrt(np.mean(error**2)))
    ratio["all"] = float(own.mean() / sd.mean())
    return {
        "rms": rms,
        "sd_ratio": ratio,
        "mean_of_sd_ratios": float(np.mean(own / sd)),
        "num_unreliable": int(np.sum(~kept)),
    }


def evidence(posterior: Any, exact: np.ndarray) -> dict[str, Any]:
    """Errors of the log evidence in nats: their root mean square, the median and the worst, and what the sampler says."""
    error = posterior.log_evidence[: len(exact)] - exact
    return {
        "evidence_rms": float(np.sqrt(np.mean(error**2))),
        "evidence_median": float(np.median(np.abs(error))),
        "evidence_worst": float(error[np.argmax(np.abs(error))]),
        "evidence_error": float(np.mean(posterior.log_evidence_error[: len(exact)])),
    }
