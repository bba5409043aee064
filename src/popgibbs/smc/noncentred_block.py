"""A block that holds the standardised values of the sites whose location or scale it sets."""

from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx

from popgibbs._typing import PRNGKey, Values
from popgibbs.model import BlockConditional, Site, Target, by_name, non_centred
from popgibbs.moves import Metropolis
from popgibbs.proposals import BoundKernel, MovesAlong
from popgibbs.smc.block import Block


class NonCentredBlock(Block):
    """Locations or scales that are updated while the *standardised* values of the sites below them are held.

        η = (α − loc(ψ)) / scale(ψ),    ψ' ~ q(ψ | x, η, z_-b),    α' = loc(ψ') + scale(ψ') η

    In a hierarchy with few data per group, group values α pin their location and scale ψ down, so an ordinary block
    moves ψ in small steps. Here α moves along. Use it beside ordinary blocks of ψ and α: each is slow where the other is
    fast. The proposal is `Laplace()`, and `Metropolis()` corrects it, with the Jacobian of the map; the weight does not
    change. Without `blocks`, a sampler adds such blocks by itself where a location or a scale has children in a plate.

    Args:
        *sites: The names of the sites ψ.
        holding: The names of the sites α. By default all latent sites whose location or scale depends on ψ. Their
            distributions may be normal, Student-t, Laplace, Cauchy, logistic or Gumbel; half-normal, half-Cauchy,
            Weibull, exponential or gamma, which have a scale only; or transforms of these, such as log-normal.
        name: The name in messages and diagnostics; by default `"sigma | standardised alpha"`.

    Raises:
        ValueError: An argument has the wrong type.

    Examples:
        >>> def schools(x):
        ...     sigma = numpyro.sample("sigma", dist.HalfCauchy(5.0))
        ...     with numpyro.plate("points", x.shape[0]):
        ...         alpha = numpyro.sample("alpha", dist.Normal(0.0, sigma))
        ...         numpyro.sample("x", dist.Normal(alpha, 1.0), obs=x)
        >>> blocks = [pg.Block("sigma"), pg.Block("alpha"), pg.NonCentredBlock("sigma", holding=["alpha"])]
        >>> pg.APG(schools, data={"x": "points"}, blocks=blocks, example=instances[0]).blocks[2].name
        'sigma | standardised alpha'
    """

    learns: ClassVar[bool] = False

    holding: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(self, *sites: str, holding: Sequence[str] | None = None, name: str | None = None):
        super().__init__(*sites, move=Metropolis(), name=name)
        if holding is not None and (
            isinstance(holding, str) or not holding or not all(isinstance(h, str) for h in holding)
        ):
            raise ValueError(f"NonCentredBlock{sites}: holding={holding!r} is not a list of names of sites")
        self.holding = None if holding is None else tuple(holding)
        if name is None and self.holding:
            self.name = self._default_name(self.holding)

    def _default_name(self, holding: tuple[str, ...]) -> str:
        return f"{','.join(self.sites)} | standardised {','.join(holding)}"

    @property
    def updated(self) -> tuple[str, ...]:
        return (*self.sites, *(self.holding or ()))

    def bound(self, key: PRNGKey, conditional: BlockConditional, latents: Values) -> BoundKernel:
        inner = non_centred(conditional, latents, self.sites)
        return MovesAlong(self.kernel.bind(key, inner), inner)

    def resolved(self, sites: tuple[Site, ...]) -> Block:
        if self.holding is not None:
            return self
        holding = scaled_by(self.sites, sites)
        name = self._default_name(holding) if self.name == ",".join(self.sites) else self.name
        return self.changed(holding=holding, name=name)

    def check_model(self, target: Target) -> None:
        what, sites = f"NonCentredBlock('{','.join(self.sites)}')", by_name(target.sites)
        for name in self.sites:
            if sites[name].discrete:
                raise ValueError(f"{what} moves continuous sites, but '{name}' is discrete; use a Block for it")
        possible = list(scaled_by(self.sites, target.sites))
        if not possible:
            raise ValueError(f"{what}: no latent site has a location or a scale that depends on it; use a Block")
        for name in self.holding or ():
            if name not in possible:
                raise ValueError(f"{what} cannot hold '{name}', which {_why_not(name, sites)}; it can hold {possible}")


def scaled_by(names: Sequence[str], sites: tuple[Site, ...]) -> tuple[str, ...]:
    """The other latents whose location or scale depends on one of the named sites."""
    found = [site.name for site in sites if not site.observed and site.scaled_by & set(names)]
    return tuple(name for name in found if name not in names)


def _why_not(name: str, sites: dict[str, Site]) -> str:
    if name not in sites:
        return "the model does not have"
    if sites[name].observed or sites[name].discrete:
        return "is observed" if sites[name].observed else "is discrete"
    return "has no location or scale that depends on the block's sites"
