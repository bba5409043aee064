"""Shared fixtures; while the tests run, arrays in popgibbs' signatures are checked against their declared shapes."""

import os
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import install_import_hook

# beartype reads typing.Self only on classes that it decorates itself (families); the others hold NumPy arrays under the
# names of JAX's.
UNCHECKED = ("apg", "building.factory", "building.data_rules", "data.instances", "paper", "statistics.families")

os.environ["POPGIBBS_CACHE"] = "off"  # tests compile what they test, and leave the user's cache alone
# As the library compiles its own programs (`popgibbs._compiling`), in a third less time. XLA reads this when it first
# compiles, and ends the process if it does not know a flag.
if tuple(map(int, version("jaxlib").split(".")[:2])) >= (0, 10):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"

package = find_spec("popgibbs")
assert package is not None
assert package.submodule_search_locations is not None
root = Path(package.submodule_search_locations[0])
modules = (".".join(path.relative_to(root).with_suffix("").parts) for path in root.rglob("*.py"))
checked = [name for name in modules if not name.startswith(UNCHECKED) and not name.endswith("__init__")]
install_import_hook([f"popgibbs.{name}" for name in sorted(checked)], "beartype.beartype")


@pytest.fixture(scope="module")
def quick_compilation() -> Iterator[None]:
    """Halve compilation time, for tests that run each program once."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def every_block() -> Callable[..., Any]:
    """Runs many independent populations of one instance; returns reports of the initial step and of every block."""
    return _every_block


def _every_block(
    apg: Any,
    instance: dict[str, Any],
    report: Callable[[Any], Any],
    *,
    num_runs: int,
    num_sweeps: int,
    num_particles: int,
) -> Any:
    """`report` of each population, with leading axes (step, run); step 0 is the initial proposal."""
    from popgibbs._compiling import jit
    from popgibbs._random import unrolled
    from popgibbs.data import complete
    from popgibbs.smc import initialise, update

    sampler = apg.check(instance)
    data = complete(instance, apg.axes)
    num_blocks = len(sampler.blocks)

    def one(key: jax.Array) -> Any:
        population, _ = initialise(jax.random.fold_in(key, 0), sampler, data, num_particles)
        first = report(population)

        def sweep(population: Any, number: jax.Array) -> tuple[Any, Any]:
            reports = []
            for index in range(num_blocks):
                key_block = jax.random.fold_in(key, number * num_blocks + index)
                population, _, _ = update(key_block, sampler, index, data, population)
                reports.append(report(population))
            return population, jax.tree.map(lambda *leaves: jnp.stack(leaves), *reports)

        _, rest = jax.lax.scan(sweep, population, jnp.arange(1, num_sweeps + 1))
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b.reshape(-1, *b.shape[2:])]), first, rest)

    runs = jit(jax.vmap(one))(jax.random.split(unrolled(jax.random.key(0)), num_runs))
    return jax.tree.map(lambda leaf: np.moveaxis(np.asarray(leaf), 1, 0), runs)
