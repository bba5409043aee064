"""What the gallery knows about each example: its reference, and the quantities that it is compared on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from tools.gallery import enumeration, gaussian, gibbs, nuts, quadrature
from tools.gallery.moments import (
    Invariant,
    Moments,
    Values,
    continuous,
    gaussian_components,
    poisson_components,
    words_by_document,
)

Reference = Callable[[Any, Sequence[Values], Sequence[Values]], Moments]  # of model, instances and generating latents


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One example.

    Attributes:
        name: The name of its file.
        reference: Moments of the quantities on given instances.
        quantities: What is compared, which may not depend on labels.
        enumerate: Log evidence of a small instance, where it is known for small ones only.
        small: Such an instance, which gives its sizes to simulated ones.
    """

    name: str
    reference: Reference
    quantities: Invariant = continuous
    enumerate: Callable[[Values], float] | None = None
    small: Values | None = None

    @property
    def module(self) -> ModuleType:
        return import_module(f"examples.{self.name}")


def _each(of_instance: Callable[[Values], Moments]) -> Reference:
    return lambda model, instances, latents: Moments.stack([of_instance(instance) for instance in instances])


def _nuts(*non_centred: str) -> Reference:
    return lambda model, instances, latents: nuts.run(model, non_centred, instances)


def _gibbs(chains: gibbs.Chains, quantities: Invariant) -> Reference:
    return lambda model, instances, latents: gibbs.run(chains, quantities, instances, latents)


def _ppca(model: Any, instances: Sequence[Values], latents: Sequence[Values]) -> Moments:
    noise = import_module("examples.ppca").NOISE
    return _each(partial(gaussian.ppca, model=model, noise=noise))(model, instances, latents)


ENTRIES = {
    entry.name: entry
    for entry in (
        Entry(name="eight_schools", reference=_each(quadrature.eight_schools)),
        Entry(name="gamma_poisson", reference=_each(quadrature.gamma_poisson)),
        Entry(name="logistic", reference=_nuts("alpha", "beta")),
        Entry(
            name="gaussian_mixture",
            reference=_gibbs(gibbs.gaussian_mixture, gaussian_components),
            quantities=gaussian_components,
            enumerate=partial(enumeration.log_evidence, enumeration.gaussian_mixture),
            small={"x": np.zeros((7, 2), np.float32)},
        ),
        Entry(
            name="poisson_mixture",
            reference=_gibbs(gibbs.poisson_mixture, poisson_components),
            quantities=poisson_components,
            enumerate=partial(enumeration.log_evidence, enumeration.poisson_mixture),
            small={"y": np.zeros(8, np.int32)},
        ),
        Entry(
            name="lda",
            reference=_gibbs(gibbs.lda, words_by_document),
            quantities=words_by_document,
            enumerate=partial(enumeration.log_evidence, enumeration.lda),
            small={"w": np.zeros((2, 4), np.int32)},
        ),
        Entry(name="ppca", reference=_ppca),
        Entry(name="item_response", reference=_nuts()),
    )
}
