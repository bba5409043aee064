"""Running and scoring NumPyro programs; no other module uses NumPyro's handlers.

A program here is a function without arguments (`lambda: model(**data)`), so models and proposals are treated alike.
Log-probabilities stay unsummed: one number per plate element.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpyro import handlers
from numpyro.distributions import (
    CategoricalLogits,
    CategoricalProbs,
    Cauchy,
    ExpandedDistribution,
    HalfCauchy,
    Independent,
    MaskedDistribution,
    constraints,
)
from numpyro.distributions.transforms import Transform, biject_to
from numpyro.infer.util import compute_log_probs
from numpyro.ops.provenance import eval_provenance
from numpyro.primitives import Messenger

from popgibbs._random import with_key
from popgibbs._typing import LogProbs, PRNGKey, Values
from popgibbs.model.scaling import scaling

Program = Callable[[], Any]

# NumPyro keeps the active handlers in one list for all threads, so a thread holds this lock while it runs a program.
# Programs run only when a sampler is built or traced, so compiled samplers never wait for each other.
TRACING = RLock()

_WITH_QUANTILES = (Cauchy, HalfCauchy)  # distributions without moments
_IMPUTED = "_unobserved"  # NumPyro's suffix for the latent site behind `obs_mask`


class _Imputed(Messenger):
    """Gives the latent site behind `obs_mask` a density in every entry.

    NumPyro masks the observed entries of that site, so the joint is improper in them. With their density restored they
    integrate to one, and since nothing depends on them, nothing else changes.
    """

    def __init__(self, program: Program):
        super().__init__(program)
        self.observed: set[str] = set()

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample":
            return
        self.observed.add(msg["name"].removesuffix("_observed"))  # the sibling, which comes just before it
        if msg["name"].endswith(_IMPUTED) and msg["name"].removesuffix(_IMPUTED) in self.observed:
            while isinstance(msg["fn"], MaskedDistribution):
                msg["fn"] = msg["fn"].base_dist


class _Seeded(Messenger):
    """`handlers.seed` with the same keys, but only as many splits of the key as the sites without given values need.

    Most programs are scored with all of their sites given; splits that nothing uses would still have to be traced.
    """

    def __init__(self, program: Program, key: PRNGKey, given: Mapping[str, Any]):
        super().__init__(program)
        self._key = key
        self._given = given
        self._num_owed = 0  # splits that `handlers.seed` would have made

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] not in ("sample", "prng_key", "plate", "control_flow"):
            return
        if msg["kwargs"]["rng_key"] is not None or msg["value"] is not None:
            return
        self._num_owed += 1
        if msg["type"] == "sample" and msg["name"] in self._given:
            return
        for _ in range(self._num_owed):
            self._key, msg["kwargs"]["rng_key"] = jax.random.split(self._key)
        self._num_owed = 0


@dataclass(frozen=True)
class Site:
    """The properties of a sample site that do not depend on the sizes of plates."""

    name: str
    observed: bool
    plates: tuple[tuple[str, int], ...]  # (plate, axis of the log-probabilities counted from the right)
    event_dim: int
    discrete: bool
    support: tuple[int, ...] | None  # the values of a finite discrete site
    family: str | None  # the exponential family on its support, if there is one: normal, gamma, beta or dirichlet
    categorical: bool  # whether values are labels, whose distances mean nothing
    parents: frozenset[str]  # other latents that its log-probabilities depend on
    arguments: frozenset[str]  # data arguments that they depend on
    bounded_by: frozenset[str]  # latents that its support depends on
    scaled_by: frozenset[str]  # latents that its location or scale depends on; none if it is discrete or has neither

    def axis(self, plate: str) -> int | None:
        return dict(self.plates).get(plate)


def evaluate(program: Program, key: PRNGKey, values: Mapping[str, Any]) -> tuple[Values, LogProbs]:
    """Run a program with some sites fixed and the others drawn; returns the values and log-probabilities of all sites.

    A site uses the same random number whether or not others are fixed, so that a draw and the scoring of another value
    under the same key see the same internal randomness.
    """

    def run(key: PRNGKey) -> tuple[LogProbs, Any]:
        seeded = _Seeded(_Imputed(program), key, values)
        return compute_log_probs(seeded, (), {}, dict(values), sum_log_prob=False)

    with TRACING:
        log_probs, sites = with_key(run, key)
    return {name: jnp.asarray(sites[name]["value"]) for name in log_probs}, log_probs


def densities(program: Program, key: PRNGKey, values: Mapping[str, Any], names: tuple[str, ...]) -> LogProbs:
    """The log-densities from which the named sites are drawn, without `handlers.scale`, which scales only factors."""
    sites = raw_sites(program, key, values)
    return {name: sites[name]["fn"].log_prob(sites[name]["value"]) for name in names}


def draw(program: Program, key: PRNGKey) -> Values:
    """Values of the sites that a program samples and does not observe."""
    return {name: site["value"] for name, site in raw_sites(program, key).items() if not site["is_observed"]}


class _Unobserved(Messenger):
    """Draws observed sites too, and remembers what they observed."""

    def __init__(self, program: Program):
        super().__init__(program)
        self.observed: dict[str, Any] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["is_observed"]:
            self.observed[msg["name"]] = msg["value"]
            msg["value"], msg["is_observed"] = None, False


def simulate(model: Callable[..., Any], arrays: Mapping[str, Any], key: PRNGKey) -> tuple[Values, Values]:
    """An instance drawn from the model, and the latents behind it; arguments that no site observes are kept."""

    def run(key: PRNGKey) -> tuple[dict[str, Any], dict[str, Any]]:
        unobserved = _Unobserved(lambda: model(**arrays))
        return handlers.trace(handlers.seed(unobserved, key)).get_trace(), unobserved.observed

    with TRACING:
        trace, observed = with_key(run, key)
    drawn = {name: jnp.asarray(site["value"]) for name, site in trace.items() if site["type"] == "sample"}
    instance = {name: jnp.asarray(value) for name, value in arrays.items()}
    for site, value in observed.items():
        argument = observing(arrays, site, value)
        instance[argument] = drawn[site].astype(instance[argument].dtype)
    return instance, {name: value for name, value in drawn.items() if name not in observed}


def observing(arrays: Mapping[str, Any], site: str, value: Any) -> str:
    """The argument that a site observes."""
    for name, array in arrays.items():
        if value is array:
            return name
    raise ValueError(
        f"data cannot be simulated from the model, because '{site}' observes something that is computed from the model's "
        "arguments; pass the observed array itself as an argument, or give fit a simulator"
    )


def simulates(model: Callable[..., Any], arrays: Mapping[str, Any]) -> None:
    """Raise if instances cannot be simulated from the model, because what a site observes is read elsewhere too."""
    found: dict[str, str] = {}

    def parameters(**inputs: Any) -> dict[str, Any]:
        with TRACING:
            unobserved = _Unobserved(lambda: model(**inputs))
            trace = handlers.trace(handlers.seed(unobserved, jax.random.key(0))).get_trace()
        found.update({site: observing(inputs, site, value) for site, value in unobserved.observed.items()})
        sampled = {name: site["fn"] for name, site in trace.items() if site["type"] == "sample"}
        return {
            name: [jnp.asarray(leaf) for leaf in jax.tree.leaves(fn) if isinstance(leaf, jax.Array | np.ndarray | float)]
            for name, fn in sampled.items()
        }

    read = eval_provenance(parameters, **arrays)
    for site, argument in found.items():
        for name, leaves in read.items():
            if argument in frozenset().union(*leaves):
                raise ValueError(
                    f"data cannot be simulated from the model, because '{name}' is computed from '{argument}', which "
                    f"'{site}' observes; give fit a simulator"
                )


def _is_masked(distribution: Any) -> bool:
    """Whether some entries of a distribution may have no density."""
    if isinstance(distribution, MaskedDistribution):
        return distribution._mask is not True
    return hasattr(distribution, "base_dist") and _is_masked(distribution.base_dist)


def returned(program: Program, values: Mapping[str, Any]) -> Any:
    """The return value of a program whose sites have the given values."""
    with TRACING:
        return handlers.substitute(handlers.seed(program, jax.random.key(0)), data=dict(values))()


def raw_sites(program: Program, key: PRNGKey, values: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """NumPyro's own record of the sample sites, for checks when a sampler is built."""

    def run(key: PRNGKey) -> dict[str, Any]:
        seeded = handlers.substitute(_Seeded(_Imputed(program), key, values or {}), data=dict(values or {}))
        return handlers.trace(seeded).get_trace()

    with TRACING:
        trace = with_key(run, key)
    for name, site in trace.items():
        if site["type"] == "param":
            raise ValueError(f"'{name}' is a numpyro.param; hold learned arrays in an eqx.Module instead")
        if site["type"] == "plate" and site["args"][0] != jnp.shape(site["value"])[0]:
            raise ValueError(f"the plate '{name}' subsamples, which is not supported; remove its subsample_size")
    return {name: site for name, site in trace.items() if site["type"] == "sample"}


def typical_sites(program: Program, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """NumPyro's record of the sample sites, with latents that have no value at the centre of their distribution.

    Unlike a draw, that centre needs no random numbers and is the same for every particle with the same values.
    """

    def place(site: dict[str, Any]) -> Any:
        if site["name"] in values:
            return values[site["name"]]
        if site["type"] != "sample" or site["is_observed"] or site["fn"].is_discrete:
            return None
        bijection = biject_to(site["fn"].support)
        return bijection(centre_and_scale(site["fn"], bijection)[0])

    with TRACING:
        seeded = handlers.seed(_Imputed(program), jax.random.key(0))
        trace = handlers.trace(handlers.substitute(seeded, substitute_fn=place)).get_trace()
    return {name: site for name, site in trace.items() if site["type"] == "sample"}


def centre_and_scale(distribution: Any, bijection: Any) -> tuple[jax.Array, jax.Array]:
    """Where a continuous distribution lies on the real line, roughly: its mean, or else its median, and its spread.

    Neither needs to be accurate: they are a unit of length, and a point from which to look for a mode.
    """
    shape = jax.eval_shape(bijection.inv, jnp.zeros(distribution.shape())).shape
    centre, scale = jnp.zeros(shape), jnp.ones(shape)
    for low, high in (_quantiles(distribution), _moments(distribution)):
        if low is None or high is None:
            continue
        start = bijection.inv(jnp.broadcast_to(low, distribution.shape()))
        width = jnp.abs(bijection.inv(jnp.broadcast_to(high, distribution.shape())) - start)
        centre = jnp.where(jnp.isfinite(start), start, centre)
        scale = jnp.where(jnp.isfinite(start) & jnp.isfinite(width) & (width > 0), width, scale)
    return centre, scale


def _base(distribution: Any) -> Any:
    """The distribution behind batch and event axes, and masks."""
    while isinstance(distribution, Independent | ExpandedDistribution | MaskedDistribution):
        distribution = distribution.base_dist
    return distribution


def family(distribution: Any) -> str:
    """The name of a distribution's class, without the wrappers that NumPyro puts around it."""
    base = _base(distribution)
    name = getattr(base, "family", type(base).__name__)
    return name.removesuffix("Logits").removesuffix("Probs")


def _quantiles(distribution: Any) -> tuple[Any, Any]:
    """The median and the 84% quantile, if they have a closed form."""
    distribution = _base(distribution)
    if not isinstance(distribution, _WITH_QUANTILES) or distribution.event_dim:
        return None, None
    return distribution.icdf(0.5), distribution.icdf(0.84)


def _moments(distribution: Any) -> tuple[Any, Any]:
    """The mean, and one standard deviation above it, if they are known."""
    try:
        return distribution.mean, distribution.mean + jnp.sqrt(distribution.variance)
    except (NotImplementedError, AttributeError):
        return None, None


def unconstrain(program: Program, values: Values, names: tuple[str, ...]) -> Values:
    """The values of the named sites on the real line."""
    sites = raw_sites(program, jax.random.key(0), values)

    def inverse(name: str) -> Any:
        support = sites[name]["fn"].support
        try:
            return biject_to(support).inv(values[name])
        except NotImplementedError:
            raise ValueError(f"HMC cannot move '{name}': no bijection is known from the reals to {support}") from None

    return {name: inverse(name) for name in names}


def constrain(program: Program, values: Values, position: Values) -> tuple[Values, LogProbs]:
    """The sites in `position` mapped from the real line, and the log-volume of each map, by batch element.

    Sites are mapped in the order of the program, so that a support may depend on another site of `position`. All other
    sites have the given values.
    """
    return _mapped(program, values, position, lambda distribution: biject_to(distribution.support))


def standardise(program: Program, values: Values, names: tuple[str, ...]) -> Values:
    """The standardised values of the named sites: (value − location) / scale."""
    sites = raw_sites(program, jax.random.key(0), values)
    return {name: _scaling(sites[name]["fn"]).inv(values[name]) for name in names}


def rescale(program: Program, values: Values, standardised: Values) -> tuple[Values, LogProbs]:
    """The sites in `standardised` mapped back, and the log-volume of each map, by batch element."""
    return _mapped(program, values, standardised, _scaling)


def _scaling(distribution: Any) -> Transform:
    found = scaling(distribution)
    assert found is not None
    return found


def _mapped(
    program: Program, values: Values, position: Values, bijection_for: Callable[[Any], Transform]
) -> tuple[Values, LogProbs]:
    """The sites in `position`, each mapped by the bijection for its distribution, and the log-volumes."""
    mapped: Values = {}
    log_volumes: LogProbs = {}

    def place(site: dict[str, Any]) -> Any:
        name = site["name"]
        if name not in position:
            return values.get(name)
        bijection: Any = bijection_for(site["fn"])
        mapped[name] = bijection(position[name])
        volume = jnp.asarray(bijection.log_abs_det_jacobian(position[name], mapped[name]))
        batch_dim = mapped[name].ndim - site["fn"].event_dim
        log_volumes[name] = jnp.sum(volume, axis=tuple(range(batch_dim, volume.ndim)))
        return mapped[name]

    with TRACING:
        handlers.substitute(handlers.seed(_Imputed(program), jax.random.key(0)), substitute_fn=place)()
    return mapped, log_volumes


class AbstractSite(NamedTuple):
    """The properties of a site that tracing reveals."""

    value: jax.ShapeDtypeStruct
    batch_shape: tuple[int, ...] | None  # None if unknown, for sites of kernels
    observed: bool
    discrete: bool
    altered: bool  # masked or scaled, so that its log-probability is not that of its draws


def abstract_sites(program: Callable[..., Any], *inputs: Any) -> dict[str, AbstractSite]:
    """The sites of a program, found by tracing without computing anything.

    With `inputs`, `program` is a function of these that returns the program, and the first input holds values of sites.
    """
    found: dict[str, AbstractSite] = {}

    def traced(*inputs: Any) -> None:
        sites = raw_sites(program(*inputs) if inputs else program, jax.random.key(0), *inputs[:1])
        for name, site in sites.items():
            value = jax.ShapeDtypeStruct(jnp.shape(site["value"]), jnp.result_type(site["value"]))
            fn = site["fn"]
            altered = _is_masked(fn) or site["scale"] is not None
            found[name] = AbstractSite(value, fn.batch_shape, site["is_observed"], bool(fn.is_discrete), altered)

    jax.eval_shape(traced, *inputs)
    return found


def shapes(program: Program) -> dict[str, tuple[int, ...]]:
    return {name: site.value.shape for name, site in abstract_sites(program).items()}


def inspect(model: Callable[..., Any], data: Mapping[str, Any]) -> tuple[Site, ...]:
    """The sites of a model in order, with the sites and arguments that their log-probabilities depend on."""
    key = jax.random.key(0)
    abstract = abstract_sites(lambda: model(**data))
    latents = {name: site.value for name, site in abstract.items() if not site.observed}
    if clash := sorted(set(latents) & set(data)):
        raise ValueError(f"the model samples sites {clash} that are also names of its data arguments")
    sites: list[Site] = []

    def log_probs(**inputs: Any) -> tuple[LogProbs, dict[str, list[jax.Array]], dict[str, list[jax.Array]]]:
        bounds: dict[str, list[jax.Array]] = {}
        scales: dict[str, list[jax.Array]] = {}
        arrays = {name: inputs[name] for name in data}
        values = {name: inputs[name] for name in latents}
        for name, site in raw_sites(lambda: model(**arrays), key, values).items():
            observed = site["is_observed"]
            if not observed and _is_masked(site["fn"]):
                raise ValueError(
                    f"the latent site '{name}' is inside a mask, so some of its values would have no density and the "
                    "evidence no meaning; sample it outside the mask, and keep the sites that depend on it inside"
                )
            # Sorted by axis, because plates can be entered in any order.
            plates = sorted(((frame.name, frame.dim) for frame in site["cond_indep_stack"]), key=lambda plate: plate[1])
            sites.append(
                Site(
                    name=name,
                    observed=observed,
                    plates=tuple(plates),
                    event_dim=site["fn"].event_dim,
                    discrete=bool(site["fn"].is_discrete),
                    support=None if observed else finite_support(site["fn"]),
                    family=_family_on(site["fn"].support),
                    categorical=isinstance(_base(site["fn"]), CategoricalLogits | CategoricalProbs),
                    parents=frozenset(),
                    arguments=frozenset(),
                    bounded_by=frozenset(),
                    scaled_by=frozenset(),
                )
            )
            bounds[name] = [jnp.asarray(bound) for bound in jax.tree.leaves(site["fn"].support)]
            map_from_standard = None if site["fn"].is_discrete else scaling(site["fn"])
            scales[name] = [jnp.asarray(number) for number in jax.tree.leaves(map_from_standard)]
        return evaluate(lambda: model(**arrays), key, values)[1], bounds, scales

    provenance, bounds, scales = eval_provenance(log_probs, **data, **latents)
    return tuple(
        replace(
            site,
            parents=frozenset(provenance[site.name] & set(latents)) - {site.name},
            arguments=frozenset(provenance[site.name] & set(data)),
            bounded_by=frozenset().union(*bounds[site.name]) & set(latents),
            scaled_by=frozenset().union(*scales[site.name]) & set(latents),
        )
        for site in sites
    )


def _family_on(support: Any) -> str | None:
    """The exponential family whose members have this support."""
    while isinstance(support, type(constraints.independent(constraints.real, 1))):
        support = support.base_constraint
    families = {
        "normal": (constraints.real, constraints.real_vector),
        "gamma": (constraints.positive,),
        "beta": (constraints.unit_interval,),
        "dirichlet": (constraints.simplex,),
    }
    return next((name for name, supports in families.items() if any(support is s for s in supports)), None)


def finite_support(distribution: Any) -> tuple[int, ...] | None:
    """The values of a finite discrete scalar distribution; None for others."""
    if not distribution.has_enumerate_support or distribution.event_dim:
        return None
    # A support that depends on data or on other sites is unknown while these are traced.
    try:
        with jax.ensure_compile_time_eval():
            support = distribution.enumerate_support(expand=False)
    except (NotImplementedError, jax.errors.JAXTypeError):
        return None
    return None if isinstance(support, Tracer) else tuple(int(value) for value in np.ravel(support))


def masked(log_probs: LogProbs, sites: Mapping[str, Site], mask: Mapping[str, Any]) -> LogProbs:
    """Log-probabilities with zero at padded elements."""
    out = {}
    for name, log_prob in log_probs.items():
        for plate, axis in sites[name].plates:
            if plate in mask and jnp.ndim(log_prob) >= -axis:
                log_prob = jnp.where(expand(mask[plate], axis), log_prob, 0.0)
        out[name] = log_prob
    return out


def expand(vector: jax.Array, axis: int) -> jax.Array:
    """A vector laid along an axis counted from the right."""
    return jnp.reshape(vector, vector.shape + (1,) * (-axis - 1))
