"""A proof, from a traced program, that the elements of a plate do not mix.

Every array of a jaxpr is in one of three states with respect to some input that has an axis of elements: it does not
depend on the input (`None`); it has an axis along which its entry i depends on element i alone (the number of the axis,
its lane); or nothing is known (`MIXED`). Each primitive maps the states of its inputs to those of its outputs, and a
primitive that is not listed here mixes. A lane is therefore a proof, and `MIXED` does not prove dependence.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

MIXED = "mixed"
Lane = int | str | None

# fmt: off
_ELEMENTWISE = frozenset([
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e",
    "bessel_i1e", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "copy_p", "cos", "cosh", "digamma", "div",
    "eq", "eq_to", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "igamma", "igamma_grad_a",
    "igammac", "imag", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min",
    "mul", "ne", "neg", "nextafter", "not", "or", "polygamma", "population_count", "pow", "random_gamma_grad", "real",
    "reduce_precision", "regularized_incomplete_beta", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sinh",
    "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor", "zeta",
])
# fmt: on
_REDUCTIONS = frozenset(
    ["reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor", "argmax", "argmin"]
)
_ALONG_AXIS = {
    "cumsum": "axis",
    "cumprod": "axis",
    "cummax": "axis",
    "cummin": "axis",
    "cumlogsumexp": "axis",
    "sort": "dimension",
    "concatenate": "dimension",
    "split": "axis",
}
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}
_CALLS |= {"custom_vjp_call": "call_jaxpr", "checkpoint": "jaxpr", "remat": "jaxpr", "remat2": "jaxpr"}


def lanes(function: Callable[[Any], Any], inputs: Any, axes: Any) -> Any:
    """The lane of every output of a function whose inputs have their elements along the given axes."""
    jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(inputs)
    found = _through(jaxpr.jaxpr, jax.tree.leaves(axes))
    return jax.tree.unflatten(jax.tree.structure(shapes), [_Found(lane) for lane in found])


class _Found:
    """A lane as a leaf of a tree, because None is not a leaf."""

    def __init__(self, lane: Lane):
        self.lane = lane

    def is_at(self, axis: int, ndim: int) -> bool:
        """Whether entries along an axis, counted from the right, depend on their own element alone."""
        return self.lane is None or self.lane == ndim + axis


def _through(jaxpr: Jaxpr, given: Sequence[Lane]) -> list[Lane]:
    """The lanes of a jaxpr's outputs; its constants do not depend on the inputs."""
    known: dict[Any, Lane] = dict(zip(jaxpr.invars, given, strict=True))

    def lane_of(atom: Any) -> Lane:
        return None if isinstance(atom, Literal) else known.get(atom)

    for equation in jaxpr.eqns:
        into = [lane_of(atom) for atom in equation.invars]
        known |= zip(equation.outvars, _step(equation, into), strict=True)
    return [lane_of(atom) for atom in jaxpr.outvars]


def _step(equation: Any, into: list[Lane]) -> list[Lane]:
    name, count = equation.primitive.name, len(equation.outvars)
    if all(lane is None for lane in into):
        return [None] * count
    if MIXED in into:
        return [MIXED] * count
    if name in _CALLS:
        inner = equation.params[_CALLS[name]]
        return _through(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner, into)
    return [_rule(name, equation, into)] * count


def _rule(name: str, equation: Any, into: list[Lane]) -> Lane:
    """The lane of a primitive's outputs, if at least one input has a lane and none is mixed."""
    params, shapes = equation.params, [atom.aval.shape for atom in equation.invars]
    if name == "gather":
        return _of_gather(params["dimension_numbers"], params["slice_sizes"], into, shapes)
    if name == "dot_general":
        return _of_product(params["dimension_numbers"], into, shapes)
    common = {lane for lane in into if lane is not None}
    if len(common) > 1:
        return MIXED
    (lane,) = common
    assert isinstance(lane, int)
    shape = next(shape for shape, state in zip(shapes, into, strict=True) if state is not None)
    out = equation.outvars[0].aval.shape
    if name in _ELEMENTWISE:
        return lane if len(shape) == len(out) else MIXED
    if name in _REDUCTIONS:
        return MIXED if lane in params["axes"] else lane - sum(axis < lane for axis in params["axes"])
    if name in _ALONG_AXIS:
        return MIXED if params[_ALONG_AXIS[name]] == lane else lane
    if name == "rev":
        return MIXED if lane in params["dimensions"] else lane
    if name == "broadcast_in_dim":
        place = params["broadcast_dimensions"][lane]
        return place if out[place] == shape[lane] else MIXED
    if name == "transpose":
        return params["permutation"].index(lane)
    if name == "squeeze":
        return lane - sum(axis < lane for axis in params["dimensions"])
    if name == "reshape":
        return _of_reshape(lane, shape, out)
    if name == "stack":
        return lane + (params["axis"] <= lane)
    if name == "triangular_solve":
        solved = len(shape) - (2 if params["left_side"] else 1)
        return lane if into[0] is None and lane != solved else MIXED
    if name in ("slice", "dynamic_slice"):
        return lane if len(into) == 1 + sum(state is None for state in into) and out[lane] == shape[lane] else MIXED
    return MIXED


def _of_reshape(lane: int, shape: tuple[int, ...], out: tuple[int, ...]) -> Lane:
    """The output axis of the same size with the same number of entries before it."""
    same = [i for i, size in enumerate(out) if size == shape[lane] and prod(out[:i]) == prod(shape[:lane])]
    return same[0] if same else MIXED


def _of_gather(numbers: Any, sizes: Sequence[int], into: list[Lane], shapes: list[tuple[int, ...]]) -> Lane:
    """The lane of `table[index]`, from the index, from a batch axis that both share, or from an axis taken whole."""
    operand, index = into
    out_dim = len(shapes[1]) - 1 + len(numbers.offset_dims)
    batch = [axis for axis in range(out_dim) if axis not in numbers.offset_dims]
    shared = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    if operand is None:
        return batch[index] if isinstance(index, int) and index < len(batch) else MIXED
    assert isinstance(operand, int)
    if operand in shared and index in (None, shared[operand]):
        return batch[shared[operand]]
    kept = [axis for axis in range(len(shapes[0])) if axis not in (*numbers.collapsed_slice_dims, *shared)]
    if index is None and operand in kept and sizes[operand] == shapes[0][operand]:
        return numbers.offset_dims[kept.index(operand)]
    return MIXED


def _of_product(numbers: Any, into: list[Lane], shapes: list[tuple[int, ...]]) -> Lane:
    (contracted, batches) = numbers
    found = set()
    for side, lane in enumerate(into):
        if not isinstance(lane, int):
            continue
        if lane in contracted[side]:
            return MIXED
        if lane in batches[side]:
            found.add(list(batches[side]).index(lane))
            continue
        free = [axis for axis in range(len(shapes[side])) if axis not in (*contracted[side], *batches[side])]
        before = len(batches[0]) + (0 if side == 0 else len(shapes[0]) - len(contracted[0]) - len(batches[0]))
        found.add(before + free.index(lane))
    return found.pop() if len(found) == 1 else MIXED
