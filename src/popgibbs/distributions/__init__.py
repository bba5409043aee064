"""Distributions that NumPyro lacks, is slow at, or draws with LAPACK."""

from popgibbs.distributions.autoregressive import Autoregressive
from popgibbs.distributions.normals import (
    MultivariateNormal,
    PrecisionNormal,
    cholesky,
    inverse,
    log_det,
    solve_psd,
    solve_triangular,
)
from popgibbs.distributions.refined_guess import RefinedGuess
from popgibbs.distributions.variates import ManyBeta, log_gamma_variates, stirling_rest

__all__ = [
    "cholesky",
    "inverse",
    "log_det",
    "log_gamma_variates",
    "ManyBeta",
    "MultivariateNormal",
    "PrecisionNormal",
    "RefinedGuess",
    "solve_psd",
    "solve_triangular",
    "stirling_rest",
    "Autoregressive",
]
