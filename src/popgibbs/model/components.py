"""Components that a model does not distinguish, and other labellings of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from popgibbs._typing import Values


@dataclass(frozen=True)
class Exchangeable:
    """A declaration that components can be renamed, as `exchangeable` returns it."""

    sites: tuple[str, ...]
    labels: tuple[str, ...]


def exchangeable(*sites: str, labels: str | tuple[str, ...] = ()) -> Exchangeable:
    """Declares components that the model does not distinguish, such as the clusters of a mixture.

    A sampler finds plates of components with an assignment site by itself; pass `APG(exchangeable=[...])` where it does
    not, and `APG(exchangeable=[])` to keep labels as they were drawn. The model is checked: renaming the components may
    not change the log joint.

    Args:
        *sites: All sites that hold values of the components: sites in the plate of components, and sites whose last axis
            runs over components, such as mixture weights.
        labels: The finite sites whose values name a component.

    Returns:
        The declaration for `APG(exchangeable=...)`.

    Raises:
        ValueError: No site is named.

    Examples:
        >>> def mixture(x):
        ...     with numpyro.plate("clusters", 2):
        ...         mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        ...     with numpyro.plate("points", x.shape[0]):
        ...         c = numpyro.sample("c", dist.Bernoulli(0.5))
        ...         numpyro.sample("x", dist.Normal(mu[c], 1.0), obs=x)
        >>> clusters = pg.exchangeable("mu", labels="c")
        >>> two = pg.APG(mixture, data={"x": "points"}, exchangeable=[clusters], example=instances[0])
        >>> drawn = two.sample(key, instances, num_sweeps=2)
        >>> list(drawn.summary(0).index.get_level_values("site"))[:2]
        ['mu[0]', 'mu[1]']
    """
    if not sites or not all(isinstance(site, str) for site in sites):
        raise ValueError(f"exchangeable{sites} needs the names of the sites that hold values of the components")
    return Exchangeable(sites, (labels,) if isinstance(labels, str) else tuple(labels))


@dataclass(frozen=True)
class Components:
    """Exchangeable components, as found in a model."""

    size: int
    plate: str | None  # whose elements they are, if they have one
    axes: tuple[tuple[str, tuple[int, ...]], ...]  # by site, the axes of its value that run over components, all negative
    labels: tuple[str, ...]

    def reordered(self, values: Mapping[str, Any], order: Any) -> Values:
        """The values of one particle with component order[k] in place k; labels follow."""
        new = dict(values)
        for name, axes in self.axes:
            for axis in axes:
                new[name] = jnp.take(new[name], order, axis=axis)
        for name in self.labels:
            new[name] = jnp.argsort(order).astype(new[name].dtype)[new[name]]
        return new
