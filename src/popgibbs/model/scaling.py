"""Locations and scales: the map from a standardised value η to a site's value, α = loc + scale · η."""

from typing import Any

import numpyro.distributions as dist
from numpyro.distributions.transforms import AffineTransform, ComposeTransform, Transform

_LOCATED = (dist.Normal, dist.StudentT, dist.Laplace, dist.Cauchy, dist.Logistic, dist.Gumbel)
_SCALED = (dist.HalfNormal, dist.HalfCauchy, dist.Weibull)
_BY_RATE = (dist.Exponential, dist.Gamma)
_WRAPPERS = (dist.Independent, dist.ExpandedDistribution)


def scaling(distribution: Any) -> Transform | None:
    """The map from η, which has location zero and scale one; None for distributions without location and scale.

    Where the distribution transforms a base, as a log-normal does, η belongs to the base.
    """
    parts: list[Transform] = []
    while isinstance(distribution, (*_WRAPPERS, dist.TransformedDistribution)):
        if isinstance(distribution, dist.TransformedDistribution):
            parts = [*distribution.transforms, *parts]
        distribution = distribution.base_dist
    if isinstance(distribution, _LOCATED):
        parts = [AffineTransform(distribution.loc, distribution.scale), *parts]
    elif isinstance(distribution, _SCALED):
        parts = [AffineTransform(0.0, distribution.scale), *parts]
    elif isinstance(distribution, _BY_RATE):
        parts = [AffineTransform(0.0, 1 / distribution.rate), *parts]
    return ComposeTransform(parts) if parts else None
