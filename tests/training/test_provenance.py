"""Descriptions of optimisers differ between different ones, and agree for the same one constructed twice."""

from collections.abc import Callable

import jax.numpy as jnp
import optax
import pytest

from popgibbs.training import hyperparameters, refuse_changes


class Halving:
    """A schedule as a callable object."""

    def __init__(self, rate: float):
        self.rate = rate

    def __call__(self, step: int) -> float:
        return self.rate / 2**step


OPTIMISERS: dict[str, Callable[[float], optax.GradientTransformation]] = {
    "rate": optax.adam,
    "another number": lambda x: optax.adam(1e-3, b1=x),
    "cosine": lambda x: optax.adam(optax.cosine_decay_schedule(x, 10)),
    "clipped": lambda x: optax.chain(optax.clip_by_global_norm(x), optax.sgd(0.1)),
    "injected": lambda x: optax.inject_hyperparams(optax.adam)(learning_rate=x),
    "object": lambda x: optax.sgd(Halving(x)),
    "array": lambda x: optax.sgd(jnp.float32(x)),
    "accumulated": lambda x: optax.MultiSteps(optax.adam(x), 2).gradient_transformation(),
    "partition": lambda x: optax.partition({"a": optax.adam(x)}, lambda parameters: "a"),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_with_a_different_hyperparameter_differ(name: str) -> None:
    make = OPTIMISERS[name]
    assert hyperparameters(make(0.25)) == hyperparameters(make(0.25)) != hyperparameters(make(0.5))


def test_optimisers_with_different_transformations_or_constants_differ() -> None:
    assert hyperparameters(optax.sgd(0.1)) != hyperparameters(optax.sign_sgd(0.1))
    assert hyperparameters(optax.sgd(lambda step: 0.1)) != hyperparameters(optax.sgd(lambda step: 0.2))


def test_the_first_hyperparameter_that_differs_is_named() -> None:
    saved, now = ({"optimiser": hyperparameters(optax.adam(rate))} for rate in (1e-3, 1e-2))
    with pytest.raises(ValueError, match=r"made with optimiser 'scale.step_size=-0.001', not 'scale.step_size=-0.01'"):
        refuse_changes("there", saved, now)
    with pytest.raises(ValueError, match=r"made with batch_size=2, not 3"):
        refuse_changes("there", {"batch_size": 2}, {"batch_size": 3})
    with pytest.raises(ValueError, match=r"made with optimiser 'b', not 'nothing more'"):
        refuse_changes("there", {"optimiser": ["a", "b"]}, {"optimiser": ["a"]})
    refuse_changes("there", {"batch_size": 2, "more": 1}, {"batch_size": 2})
