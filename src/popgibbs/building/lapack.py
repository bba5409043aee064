"""Warnings, when a sampler is built, about LAPACK and FFT calls in its programs, which can hang forever on CPU.

jaxlib 0.10.0 to 0.11.0 divides a batch of matrices into tasks for the threads on which XLA runs a program, and the thread
that does so waits for them. When every thread waits in this way, none is left to work (`docs/explanation/lapack.md`). A
single matrix is not divided, so constants and learned arrays that all particles share are safe. Since 0.11.1 LAPACK does
not wait, but FFTs do.
"""

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from popgibbs._typing import PRNGKey, Values
from popgibbs.building.probes import Draw
from popgibbs.data import Data
from popgibbs.model import Target, program
from popgibbs.smc import Block

# JAX's primitives that call LAPACK on CPU. Their first input is a matrix or a batch of matrices.
_FACTORISATIONS = {"cholesky", "geqp3", "geqrf", "hessenberg", "householder_product", "lu", "ormqr", "qr", "tridiagonal"}
_LAPACK = _FACTORISATIONS | {"eig", "eigh", "schur", "svd", "triangular_solve"}
_DIVIDED = (0, 10, 0)  # the first jaxlib that divides batches of matrices
_TURNED = (0, 11, 1)  # the first jaxlib whose FFTs wait for their threads, and whose LAPACK calls do not
_WAY_OUT = (
    "or set NPROC=1 and JAX_NUM_CPU_DEVICES=1 in the environment, so that XLA has one thread "
    "(docs/how-to/avoid-lapack-hangs.md)"
)


def calls_lapack(jaxpr: Jaxpr) -> bool:
    """Whether a program, or a program inside of it, calls LAPACK or FFTs at all."""
    return any(
        equation.primitive.name in _LAPACK | {"fft", "tridiagonal_solve"} or any(map(calls_lapack, _inside(equation)))
        for equation in jaxpr.eqns
    )


def warn_of_waiting_calls(target: Target, blocks: tuple[Block, ...], draws: list[Draw]) -> None:
    """Name the sites and the blocks whose programs call LAPACK or FFTs on batches, when run for many particles.

    Programs are traced, not compiled. Other backends, and programs on a single thread, are safe.
    """
    one_thread = os.environ.get("NPROC") == "1" and jax.local_device_count() == 1  # XLA has at least one per device
    if jax.default_backend() != "cpu" or one_thread:
        return
    found = {f"the site '{name}'": calls for name, calls in _calls_of_model(target).items()}
    latents, _ = jax.eval_shape(lambda key: program.evaluate(target.program, key, {}), _key())
    for draw in draws:
        block = blocks[draw.block]
        owner = f"block '{block.name}': its proposal"
        found[owner] = found.get(owner, set()) | _calls_of_proposal(target, block, draw, latents)
    for owner, calls in found.items():
        if lapack := sorted(calls - {"fft"}):
            warnings.warn(
                f"{owner} calls LAPACK ({', '.join(lapack)}) on batches of matrices, which can hang forever on CPU; use "
                f"pg.distributions (MultivariateNormal, cholesky, solve_psd, inverse, log_det), {_WAY_OUT}",
                stacklevel=5,
            )
        if "fft" in calls:
            warnings.warn(
                f"{owner} calls FFTs on batches, which can hang forever on CPU; write a short FFT as a product with "
                f"the matrix of the transform, {_WAY_OUT}",
                stacklevel=5,
            )


def _calls_of_model(target: Target) -> dict[str, set[str]]:
    """By site, the calls behind its value and its log-probability that no earlier site needs."""

    def run(key: PRNGKey, data: Data) -> list[Any]:
        values, log_probs = program.evaluate(Target(target.model, data, target.sites).program, key, {})
        return [(values[site.name], log_probs[site.name]) for site in target.sites]

    jaxpr = _traced(run, _key(), target.data)
    found, seen = {}, set()
    for index, site in enumerate(target.sites):
        needed = _needed(jaxpr, jaxpr.outvars[2 * index : 2 * index + 2]) - seen
        found[site.name] = _waiting(jaxpr, needed)
        seen |= needed
    return found


def _calls_of_proposal(target: Target, block: Block, draw: Draw, latents: Values) -> set[str]:
    def run(key: PRNGKey, data: Data, latents: Values) -> Any:
        conditional = draw.conditional(Target(target.model, data, target.sites), block, latents)
        return block.kernel.bind(key, conditional).draw()

    jaxpr = _traced(run, _key(), target.data, latents)
    return _waiting(jaxpr, _needed(jaxpr, jaxpr.outvars))


def _key() -> PRNGKey:
    return jax.random.key(0)


def _traced(run: Callable[..., Any], *inputs: Any) -> Jaxpr:
    """The program for two particles of two instances; the arrays of the model and the proposal are shared."""
    pairs = jax.eval_shape(lambda tree: jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), tree), inputs)
    return jax.make_jaxpr(jax.vmap(run))(*pairs).jaxpr


def _needed(jaxpr: Jaxpr, outputs: Iterable[Any]) -> set[int]:
    """The equations that the outputs depend on; XLA drops the others, such as NumPyro's checks of parameters."""
    wanted, needed = {out for out in outputs if isinstance(out, Var)}, set()
    for index, equation in reversed(list(enumerate(jaxpr.eqns))):
        if wanted & set(equation.outvars):
            needed.add(index)
            wanted |= {value for value in equation.invars if isinstance(value, Var)}
    return needed


def _waiting(jaxpr: Jaxpr, needed: set[int]) -> set[str]:
    """The names of the calls that may wait, including those in loops, branches and functions."""
    names: set[str] = set()
    for equation in (jaxpr.eqns[index] for index in needed):
        if _waits(equation):
            names.add(equation.primitive.name)
        for inner in _inside(equation):
            names |= _waiting(inner, _needed(inner, inner.outvars))
    return names


def _inside(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """The programs that an equation runs: a loop's body, branches, a function. JAX exports its own only from 0.10 on."""
    for value in equation.params.values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, ClosedJaxpr):
                yield part.jaxpr
            elif isinstance(part, Jaxpr):
                yield part


def _waits(equation: JaxprEqn) -> bool:
    name = equation.primitive.name
    if name == "fft":
        problem_axes, waiting = len(equation.params["fft_lengths"]), _jaxlib() >= _TURNED
    elif name in _LAPACK or name == "tridiagonal_solve":  # which takes diagonals
        problem_axes, waiting = 2 if name in _LAPACK else 1, _DIVIDED <= _jaxlib() < _TURNED
    else:
        return False
    return waiting and math.prod(equation.invars[0].aval.shape[:-problem_axes]) > 1  # pyright: ignore[reportAttributeAccessIssue]


def _jaxlib() -> tuple[int, ...]:
    return tuple(int(number) for number in jaxlib.__version__.split(".")[:3])
