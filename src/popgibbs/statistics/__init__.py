"""Neural sufficient statistics: exponential families, networks over points, masked pooling, updates."""

from popgibbs.statistics.families import (
    FEW,
    Bernoulli,
    Beta,
    Categorical,
    Dirichlet,
    FewCategories,
    Gamma,
    Normal,
    NormalGamma,
    softmax_of_few,
)
from popgibbs.statistics.neural import (
    Offsets,
    Pairwise,
    additive_update,
    choose,
    conjugate_normal_gamma,
    mean_pool,
    pick,
    pointwise,
    pool,
    spread_points,
)

__all__ = [
    "additive_update",
    "Bernoulli",
    "Beta",
    "Categorical",
    "choose",
    "conjugate_normal_gamma",
    "Dirichlet",
    "FEW",
    "FewCategories",
    "Gamma",
    "mean_pool",
    "Normal",
    "NormalGamma",
    "Offsets",
    "Pairwise",
    "pick",
    "pointwise",
    "pool",
    "softmax_of_few",
    "spread_points",
]
