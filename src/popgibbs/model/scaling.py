"""Locations and scales: the map from a standardised value η to a site's value, α = loc + scale · η."""

from collections.abc import Callable
from typing import Any

import numpyro.distributions as dist
from numpyro.distributions.transforms import AffineTransform, ComposeTransform, Transform

_FAMILIES: tuple[tuple[tuple[type, ...], Callable[[Any], tuple[Any, Any]]], ...] = (
    ((dist.Normal, dist.StudentT, dist.Laplace, dist.Cauchy, dist.Logistic, dist.Gumbel), lambda d: (d.loc, d.scale)),
    ((dist.HalfNormal, dist.HalfCauchy, dist.Weibull), lambda d: (0.0, d.scale)),
    ((dist.Exponential, dist.Gamma), lambda d: (0.0, 1 / d.rate)),
)
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
    for families, loc_and_scale in _FAMILIES:
        if isinstance(distribution, families):
            parts = [AffineTransform(*loc_and_scale(distribution)), *parts]
    return ComposeTransform(parts) if parts else None
