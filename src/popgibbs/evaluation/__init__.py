"""A sampler next to others: baselines, and comparisons at equal budgets."""

from popgibbs.evaluation.baselines import hmc_rws, tune_step_size, with_prior_proposals
from popgibbs.evaluation.comparison import Comparison, Method, compare, hmc_label, matched

__all__ = [
    "with_prior_proposals",
    "compare",
    "Comparison",
    "hmc_rws",
    "hmc_label",
    "matched",
    "Method",
    "tune_step_size",
]
