"""Numbers that show when to trust a posterior, computed from NumPy arrays."""

import numpy as np
from scipy.special import logsumexp

_ROUNDING = 1e-5  # relative rounding error of a log joint: about a hundred times that of one float32


def combined_log_evidence(log_evidence: np.ndarray) -> np.ndarray:
    """log of the mean evidence over the populations of an instance (the last axis); that mean is unbiased."""
    return logsumexp(log_evidence, axis=-1) - np.log(log_evidence.shape[-1])


def log_evidence_error(log_evidence: np.ndarray) -> np.ndarray:
    """The standard error of the combined log evidence, from the spread over populations.

    NaN for a single population, and where the evidence of all populations is zero.
    """
    count = log_evidence.shape[-1]
    combined = combined_log_evidence(log_evidence)[..., None]
    known = np.isfinite(combined) & (count > 1)
    relative = np.exp(log_evidence - np.where(known, combined, 0.0), where=known, out=np.full(log_evidence.shape, np.nan))
    return np.std(relative, axis=-1, ddof=min(1, count - 1)) / np.sqrt(count)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """The mean over instances and its standard error."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(np.mean(values)), float(error)


def mean_of(values: np.ndarray) -> dict[str, float]:
    """The mean and its standard error as results store them."""
    mean, error = mean_and_error(values)
    return {"mean": mean, "se": error}


def truth_rank_p_value(log_joint_draws: np.ndarray, log_joint_truth: np.ndarray, generator: np.random.Generator) -> float:
    """The p-value of uniformity of the truth's rank among independent posterior draws.

    `log_joint_draws` has one row per instance and one column per independent draw. If the draws come from the posterior,
    the generating latents are exchangeable with them, so their rank by log p(x, z) is uniform, whatever the labels.
    """
    from scipy.stats import chisquare  # here, because it is slow to import

    num_instances, num_draws = log_joint_draws.shape
    together = np.column_stack([log_joint_truth, log_joint_draws]).astype(float)
    # Equal discrete latents have log joints that are equal up to rounding. Small noise on all of them breaks such ties
    # at random and preserves exchangeability.
    noise = _ROUNDING * (1 + np.abs(together).max(axis=1, keepdims=True))
    together += noise * generator.random(together.shape)
    ranks = np.sum(together[:, 1:] < together[:, :1], axis=1)
    counts = np.bincount(ranks, minlength=num_draws + 1)
    return float(chisquare(counts, np.full(num_draws + 1, num_instances / (num_draws + 1))).pvalue)


def weak_blocks(ess: np.ndarray, labels: list[str], num_particles: int, below: float = 0.3) -> list[str]:
    """Blocks whose mean effective sample size in the last sweep is below a fraction of the particles.

    A high number shows only that the block's proposal is close to its conditional, not that the mode is right.
    """
    fraction = ess[..., -1, :].reshape(-1, len(labels)).mean(axis=0) / num_particles
    return [f"{label} ({value:.0%})" for label, value in zip(labels, fraction, strict=True) if value < below]
