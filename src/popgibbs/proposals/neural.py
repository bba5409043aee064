"""A learned Gaussian per element, from neural sufficient statistics and Newton's method, as a proposal."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import BlockConditional, Conditional, Coordinates, Partition, by_name, entry_mask, touched
from popgibbs.proposals.base import BoundKernel, Gaussians, Kernel
from popgibbs.proposals.gaussian import BoundGaussian, Shape
from popgibbs.proposals.laplace import Laplace
from popgibbs.proposals.newton import local_features, mode_and_precision
from popgibbs.proposals.pooling import (
    ChildStatistics,
    DataStatistics,
    Entries,
    Features,
    MakeNetwork,
    Scale,
    as_features,
    check_features,
    columns,
    given_columns,
    measured,
    network,
    pooling_order,
    through,
    visible,
)

_WIDEST_GUESS = 3.0  # log-scales are kept within it, so that an untrained network cannot overflow
_LARGEST_FEATURE = 5.0
_MOST_FULL = 8  # numbers in an element, up to which a guess has correlations


class Guess(eqx.Module):
    """A Gaussian per element, in prior units, from statistics of the model's entries and from other latents."""

    statistics: ChildStatistics | DataStatistics
    scale: Scale | None  # of the latents, if there are any
    head: eqx.nn.MLP
    names: tuple[str, ...] = eqx.field(static=True)  # of the latents that are inputs

    def __call__(
        self, conditional: BlockConditional, size: int
    ) -> tuple[Float[Array, "element axis"], Float[Array, "element axis axis"]]:
        """The location, and the factor of the precision."""
        inputs = [self.statistics(conditional)]
        if self.scale is not None:
            inputs.append(self.scale(given_columns(conditional, self.names)))
        out = through(self.head, jnp.concatenate(inputs, axis=-1))
        loc, log_scale = out[:, :size], jnp.clip(out[:, size : 2 * size], -2 * _WIDEST_GUESS, _WIDEST_GUESS)
        factor = jax.vmap(jnp.diag)(jnp.exp(-log_scale))
        if size > 1 and out.shape[1] > 2 * size:
            below = jnp.zeros((out.shape[0], size, size)).at[:, *jnp.tril_indices(size, -1)].set(out[:, 2 * size :])
            factor = (jnp.eye(size) + below) @ factor
        return loc, factor


class Neural(Kernel):
    """A learned proposal for continuous sites, from the model's own factors; no network has to be written.

    A network of the entries of the model's factors (values, data, other latents), pooled by the model's own plates into
    the elements of the block, guesses a Gaussian for each element. `refine` Newton steps on the model's factors improve
    the guess, and a second network corrects what a Gaussian at the mode misses: location, scale, skewness and tails. The
    first draw pools observed sites instead where children have not been drawn.

    `fit` gives these proposals to samplers that are built from the model. The networks are made when the sampler is
    checked, from the shapes of the model; before training use `Laplace()`.

    Args:
        refine: Newton steps per update. With 0 the guess is the proposal, which is fastest.
        width: Pooled statistics per factor.
        hidden: Units in each hidden layer.
        wide: The share of draws that are three times as wide, as in `Laplace`.
        features: What networks see instead of a site's or an argument's values, by name: a function of the values, whose
            result has the same plates. By default the values themselves.
        network: What maps the inputs of one entry to its statistics: a function of the numbers of inputs and outputs and
            of a key that returns a module, such as `lambda inputs, outputs, key: eqx.nn.MLP(inputs, outputs, 64, 2,
            key=key)`. By default an MLP with one hidden layer.
        bijections: As in `Laplace`.

    Examples:
        >>> block = pg.Block("mu", proposal=pg.Neural(), move=pg.Metropolis())
        >>> sampler = pg.APG(model, data={"x": "points"}, blocks=[block], example=instances[0])
    """

    takes_any_key: ClassVar[bool] = True
    is_learned: ClassVar[bool] = True

    refine: int = eqx.field(static=True, default=2)
    width: int = eqx.field(static=True, default=16)
    hidden: int = eqx.field(static=True, default=32)
    wide: float = eqx.field(static=True, default=0.05)
    features: Features = eqx.field(static=True, default=(), converter=as_features)
    network: MakeNetwork | None = eqx.field(static=True, default=None)
    bijections: Mapping[str, Any] = eqx.field(default_factory=dict)
    update: Any = None
    first: Any = None
    exact: Kernel | None = None  # draws instead of the networks, where all factors exist

    @property
    def summary(self) -> str:
        if self.exact is not None:
            return self.exact.summary
        return f"Neural, {self.refine} Newton steps" if self.refine else "Neural"

    @property
    def from_model(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return not self.bijections  # whether they reach all of a support has to be checked

    def gaussians(self, names: tuple[str, ...], partition: Partition) -> Gaussians:
        return [(names, partition)]

    def with_search(self) -> Kernel:
        """A kernel without networks, because one Gaussian cannot have several modes."""
        return Laplace().with_search()

    def made_exact(self, family: str) -> Kernel:
        """The kernel for factors that have the form of an exponential family: only its first draw is learned."""
        return replace(self, exact=Laplace().made_exact(family))

    def bind(self, key: PRNGKey, conditional: Conditional) -> BoundKernel:
        assert isinstance(conditional, BlockConditional)
        if self.exact is not None and _is_complete(conditional):
            return self.exact.bind(key, conditional)
        guess, correction = self.first if conditional.initial else self.update
        coordinates = Coordinates(conditional, self.bijections)
        loc, factor = guess(conditional, coordinates.size)
        if not (self.refine and _is_complete(conditional)):
            return BoundGaussian(key, coordinates, loc, factor, self.wide)
        refined = mode_and_precision(coordinates, self.refine, stop_gradient(loc))
        refined = stop_gradient(refined)
        features = stop_gradient(local_features(coordinates, *refined))
        out = through(correction, jnp.clip(features, -_LARGEST_FEATURE, _LARGEST_FEATURE))
        shape = Shape(*(0.5 * jnp.tanh(part) for part in jnp.split(out, 4, axis=-1)))
        bound = BoundGaussian(key, coordinates, *refined, self.wide, shape)
        return WithLesson(bound, BoundGaussian(key, coordinates, loc, factor, self.wide))

    def inputs(self, conditional: Conditional) -> tuple[Any, Any]:
        assert isinstance(conditional, BlockConditional)
        check_features(self.features, conditional)
        sites, complete = by_name(conditional.target.sites), _is_complete(conditional)
        names = _children(conditional) if complete else _observed(conditional)
        plan = Plan(
            size=Coordinates(conditional, self.bijections).size,
            complete=complete,
            visible=visible(conditional),
            levels={name: len(pooling_order(conditional, sites[name])) for name in names},
        )
        entries = {name: columns(conditional, name, self.features) for name in names}
        masks = {name: entry_mask(conditional.target, name, value.shape[:-1]) for name, value in entries.items()}
        real = {name: jnp.where(masks[name][..., None] > 0, value, jnp.nan) for name, value in entries.items()}
        return (real, given_columns(conditional, plan.visible)), plan

    def prepared(self, key: PRNGKey, update: tuple[Any, Any], first: tuple[Any, Any] | None) -> "Neural":
        if self.update is not None or self.first is not None:
            return self
        key_update, key_first = jax.random.split(key)
        networks = [
            None if part is None or (self.exact and part[1].complete) else self._networks(own_key, *part)
            for own_key, part in ((key_update, update), (key_first, first))
        ]
        return eqx.tree_at(lambda k: (k.update, k.first), self, networks, is_leaf=lambda x: x is None)

    def _networks(self, key: PRNGKey, samples: Any, plan: "Plan") -> tuple[Guess, Any]:
        entries, given = samples
        key_entries, key_head, key_correction = jax.random.split(key, 3)
        size, networks, num_pooled = plan.size, {}, 0
        for number, (name, levels) in enumerate(plan.levels.items()):
            keys = jax.random.split(jax.random.fold_in(key_entries, number), max(levels, 1))
            num_inputs = entries[name].shape[-1]
            if self.network is None:
                own = network(num_inputs, self.width, self.hidden, 1, keys[0])
            else:
                own = self.network(num_inputs, self.width, keys[0])
            base = Entries(measured(entries[name]), own, self.features)
            later = [network(self.width + 1, self.width, self.hidden, 1, k) for k in keys[1:]]
            networks[name] = base if plan.complete else (base, later)
            num_pooled += self.width + (1 if plan.complete or levels else 0)
        outputs = 2 * size + (size * (size - 1) // 2 if size <= _MOST_FULL else 0)
        guess = Guess(
            ChildStatistics(networks) if plan.complete else DataStatistics(networks),
            measured(given) if given.shape[-1] else None,
            _starting_at_none(network(num_pooled + given.shape[-1], outputs, 2 * self.hidden, 2, key_head)),
            plan.visible,
        )
        if not (plan.complete and self.refine):
            return guess, None
        return guess, _starting_at_none(network(4 * size, 4 * size, self.hidden, 2, key_correction))


@dataclass(frozen=True)
class Plan:
    """The facts about a conditional that decide about its networks."""

    size: int  # numbers in an element
    complete: bool  # whether all factors that contain the block's sites exist
    visible: tuple[str, ...]  # the latents that are inputs
    levels: dict[str, int]  # by pooled factor, the number of plates that are pooled


class WithLesson(BoundKernel):
    """A refined proposal, whose log-probability also trains the guess that it was refined from.

    Newton's method erases its starting point, so the density of the result gives the guess no gradient. The guess learns
    from the same values by its own density, which adds a gradient but nothing to the value.
    """

    def __init__(self, refined: BoundGaussian, guess: BoundGaussian):
        self.refined, self.guess = refined, guess

    def draw(self) -> tuple[Values, Elements]:
        return self.refined.draw()

    def score(self, values: Values) -> Elements:
        lesson = self.guess.score(values)
        return self.refined.score(values) + (lesson - stop_gradient(lesson))


def _is_complete(conditional: BlockConditional) -> bool:
    """Whether all factors that contain the block's sites exist."""
    return len(conditional.factors) == len(touched(conditional.target.sites, conditional.names))


def _children(conditional: BlockConditional) -> tuple[str, ...]:
    return tuple(name for name in conditional.factors if name not in conditional.names)


def _observed(conditional: BlockConditional) -> tuple[str, ...]:
    return tuple(site.name for site in conditional.target.sites if site.observed)


def _starting_at_none(network: eqx.nn.MLP) -> eqx.nn.MLP:
    """The network with a last layer of zeros, which corrects nothing yet."""
    last = network.layers[-1]
    zeros = jax.tree.map(jnp.zeros_like, (last.weight, last.bias))
    return eqx.tree_at(lambda n: (n.layers[-1].weight, n.layers[-1].bias), network, zeros)
