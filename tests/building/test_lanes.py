"""A proof of independence holds: no entry of a proved output depends on another element."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import Array

from popgibbs.building import lanes

NUM = 5
Z, SIMPLEX, LABELS = (
    jnp.linspace(-1.0, 1.0, NUM),
    jnp.tile(jnp.array([0.1, 0.2, 0.3, 0.4]), (NUM, 1)),
    jnp.array([0, 1, 1, 0, 1]),
)
TABLE = jnp.array([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]])

PROVED: dict[str, tuple[Callable[[Array], Array], Array, int]] = {
    "elementwise": (lambda z: dist.Normal(z, 1.0).log_prob(jnp.ones(NUM)), Z, 0),
    "a custom derivative": (lambda z: dist.Bernoulli(logits=z).log_prob(jnp.ones(NUM)), Z, 0),
    "special functions": (lambda z: dist.Beta(jnp.exp(z), 2.0).log_prob(jnp.full(NUM, 0.4)), Z, 0),
    "a sum over another axis": (lambda z: jnp.sum(z[:, None] * jnp.arange(3.0), axis=1), Z, 0),
    "a transposed sum": (lambda z: jnp.sum((z[:, None] * jnp.arange(3.0)).T, axis=0), Z, 0),
    "components summed out": (
        lambda z: dist.MixtureSameFamily(
            dist.Categorical(logits=jnp.zeros(3)), dist.Normal(z[:, None] + jnp.arange(3.0), 1.0)
        ).log_prob(jnp.ones(NUM)),
        Z,
        0,
    ),
    "an event axis": (lambda p: dist.Dirichlet(jnp.arange(1.0, 5.0)).log_prob(p), SIMPLEX, 0),
    "one column": (lambda p: p[:, 2], SIMPLEX, 0),
    "a table by label": (lambda c: dist.Categorical(probs=TABLE[c]).log_prob(c), LABELS, 0),
    "probabilities of given labels": (lambda p: dist.Categorical(probs=p).log_prob(LABELS), SIMPLEX, 0),
    "words of documents": (
        lambda p: dist.Categorical(probs=p[:, None]).expand([NUM, 7]).log_prob(jnp.zeros((NUM, 7), int)),
        SIMPLEX,
        0,
    ),
    "a product with constants": (lambda p: p @ jnp.arange(12.0).reshape(4, 3), SIMPLEX, 0),
    "from the other side": (lambda p: jnp.arange(12.0).reshape(3, 4) @ p.T, SIMPLEX, 1),
    "inside jit": (jax.jit(lambda z: jnp.exp(z) + 1.0), Z, 0),
}
MIXING: dict[str, tuple[Callable[[Array], Array], Array]] = {
    "a mean": (lambda z: z - jnp.mean(z), Z),
    "a cumulative sum": (jnp.cumsum, Z),
    "a sort": (jnp.sort, Z),
    "pairs": (lambda z: jnp.sum(jnp.abs(z[:, None] - z) < 0.1, axis=1), Z),
    "a reversed copy": (lambda z: z + z[::-1], Z),
    "a shifted copy": (lambda z: z[:-1] - z[1:], Z),
    "another order": (lambda z: z[jnp.array([1, 0, 2, 3, 4])], Z),
    "a rolled copy": (lambda z: z + jnp.roll(z, 1), Z),
    "a product over elements": (lambda z: jnp.ones((NUM, NUM)) @ z, Z),
    "a reshape that splits": (lambda p: p.reshape(4, NUM), SIMPLEX),
}


def depends(function: Callable[[Array], Array], z: Array) -> np.ndarray:
    """The outputs that change when each element changes, with axes (element, *output)."""
    others = 1 - z if jnp.issubdtype(z.dtype, jnp.integer) else jnp.flip(z, axis=1) if z.ndim > 1 else 0.3 + 0.5 * z
    before = function(z)
    return np.stack([np.asarray(function(z.at[i].set(others[i])) != before) for i in range(NUM)])


@pytest.mark.parametrize("case", PROVED)
def test_proved_outputs_depend_on_their_own_element_alone(case: str) -> None:
    function, z, axis = PROVED[case]
    found = lanes(function, z, 0)
    assert found.lane == axis
    affected = np.moveaxis(depends(function, z), 1 + axis, 1).reshape(NUM, NUM, -1).any(axis=-1)
    np.testing.assert_array_equal(affected, np.eye(NUM, dtype=bool))


@pytest.mark.parametrize("case", MIXING)
def test_functions_that_mix_elements_are_never_proved(case: str) -> None:
    function, z = MIXING[case]
    assert lanes(function, z, 0).lane == "mixed"


def test_outputs_that_do_not_depend_on_the_elements_have_no_lane() -> None:
    assert lanes(lambda z: jnp.arange(3.0), Z, 0).lane is None
