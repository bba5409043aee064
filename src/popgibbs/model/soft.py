"""The factors of a block when an assignment is not known, but only the probability of each of its values.

    Q(z_b) = Σ_n Σ_k r_nk log p(x_n, c_n = k | z) + the factors that do not depend on c

This is the expected log joint of the EM algorithm, for the factors that contain the block's sites. `r` are gates in
[0, 1], one for each value of the assignment c at each of its elements.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from popgibbs._typing import Elements, LogProbs, Values
from popgibbs.model.conditionals import BlockConditional
from popgibbs.model.target import Target, by_name, existing, touched


class SoftConditional(BlockConditional):
    """A block's factors with the assignment replaced by gates; `given` holds the other sites, without the assignment."""

    by: str
    gates: Float[Array, "value *element"]

    def log_probs(self, values: Values) -> LogProbs:
        return log_probs_by_value(self.target, {**self.given, **values}, self.by, self.gates.shape, self.soft_factors)

    @property
    def soft_factors(self) -> tuple[str, ...]:
        """The factors that contain the block's sites, of which all other sites exist."""
        return existing(self.target.sites, self.names, (*self.given, self.by))

    def reduce(self, log_probs: LogProbs) -> Elements:
        sizes, partition = self.target.plate_sizes, self.partition
        total = jnp.zeros(partition.shape(sizes)).reshape(-1)
        for name, log_prob in log_probs.items():
            if name not in self._gated:
                total += partition.reduce({name: log_prob[0]}, sizes, self.given)
                continue
            gated = jnp.where(self.gates > 0, aligned(self.target, self.by, name, self.gates) * log_prob, 0.0)
            if partition.assigned_by is not None and name != self.by:
                total += jnp.sum(gated.reshape(gated.shape[0], -1), axis=1)
            else:
                total += partition.reduce({name: jnp.sum(gated, axis=0)}, sizes, self.given)
        return total

    def reduce_proposed(self, log_q: LogProbs) -> Elements:
        masked = self.mask({name: log_q[name] for name in self.names})
        return self.partition.reduce(masked, self.target.plate_sizes, self.given)

    @property
    def _gated(self) -> set[str]:
        return set(touched(self.target.sites, [self.by]))


def log_probs_by_value(
    target: Target, latents: Values, by: str, shape: tuple[int, ...], factors: tuple[str, ...]
) -> LogProbs:
    """Each factor at every value of an assignment, along a leading axis."""

    def at(value: Array) -> LogProbs:
        return target.log_probs({**latents, by: jnp.full(shape[1:], value)}, factors)

    return jax.vmap(at)(jnp.arange(shape[0]))


def aligned(target: Target, by: str, name: str, gates: Float[Array, "value *element"]) -> Array:
    """Gates along the axes of a factor that lies in all plates of the assignment, and perhaps in more."""
    sites = by_name(target.sites)
    if name == by:
        return gates
    axes = dict(sites[by].plates)
    ndim = max((-axis for _, axis in sites[name].plates), default=0)
    shape, source = [1] * ndim, []
    for plate, axis in sorted(axes.items(), key=lambda item: item[1]):
        place = sites[name].axis(plate)
        assert place is not None
        shape[place] = gates.shape[axis]
        source.append((place, axis))
    assert sorted(source) == source  # plates keep their order in NumPyro
    return gates.reshape(gates.shape[0], *shape)


def responsibilities(target: Target, latents: Values, by: str, shape: tuple[int, ...]) -> Float[Array, "value *element"]:
    """The conditional probability of each value of the assignment, given the other sites."""
    factors, sites = existing(target.sites, [by], latents), by_name(target.sites)
    log_probs = log_probs_by_value(target, latents, by, shape, factors)
    plates = dict(sites[by].plates)
    total = jnp.zeros(shape)
    for name, log_prob in log_probs.items():
        kept = {sites[name].axis(plate) for plate in plates}
        others = tuple(axis for axis in range(-(log_prob.ndim - 1), 0) if axis not in kept)
        total += jnp.sum(log_prob, axis=others).reshape(shape)
    return jax.nn.softmax(jnp.where(jnp.isfinite(total), total, -1e10), axis=0)
