"""Random rounding errors: a function evaluated with every intermediate result a little off."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal
from jax.random import fold_in

from popgibbs._typing import PRNGKey

_FUNCTIONS = ("jaxpr", "call_jaxpr")  # the parameters in which operations such as `jit` hold the function that they call


def with_rounding_errors(function: Callable[..., Any], *example: Any) -> Callable[..., Any]:
    """The function with a random key as an additional last argument, and a rounding error after every operation.

    Loops and branches are single operations here.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*example)
    structure = jax.tree.structure(shape)

    def noisy(*arguments: Any) -> Any:
        *inputs, key = arguments
        return jax.tree.unflatten(structure, _evaluate(closed, jax.tree.leaves(inputs), key))

    return noisy


def _evaluate(closed: ClosedJaxpr, inputs: list[Any], key: PRNGKey) -> list[Any]:
    values: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values |= dict(zip(closed.jaxpr.invars, inputs, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for number, equation in enumerate(closed.jaxpr.eqns):
        given = [read(variable) for variable in equation.invars]
        inner = next((equation.params[name] for name in _FUNCTIONS if name in equation.params), None)
        if isinstance(inner, ClosedJaxpr) and len(inner.jaxpr.invars) == len(given):
            found = _evaluate(inner, given, fold_in(key, number))
        else:
            bound: Any = equation.primitive.get_bind_params(equation.params)
            functions, parameters = bound if isinstance(bound, tuple) else ([], bound)  # JAX 0.10 has no functions
            found = equation.primitive.bind(*functions, *given, **parameters)
            found = found if equation.primitive.multiple_results else [found]
            found = [_rounded(value, fold_in(fold_in(key, number), place)) for place, value in enumerate(found)]
        values |= dict(zip(equation.outvars, found, strict=True))
    return [read(variable) for variable in closed.jaxpr.outvars]


def _rounded(value: Any, key: PRNGKey) -> Any:
    if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        return value
    off = jax.random.uniform(key, jnp.shape(value), minval=-1.0, maxval=1.0) * jnp.finfo(value.dtype).eps
    return value * (1 + off).astype(value.dtype)
