"""A sampler beside others: baselines, comparisons at equal budgets."""

from popgibbs.evaluation.baselines import bootstrapped, hmc_after, tuned
from popgibbs.evaluation.comparison import Comparison, Method, compare, hmc_label, matched

__all__ = [
    "bootstrapped",
    "compare",
    "Comparison",
    "hmc_after",
    "hmc_label",
    "matched",
    "Method",
    "tuned",
]
