"""Amortized population Gibbs samplers with neural sufficient statistics, for any NumPyro model.

The examples in this reference share the names defined here: the mean `mu` of four observations, a proposal with one
trainable number, a sampler, two instances of data and their posterior.

Examples:
    >>> import equinox as eqx, jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist, optax
    >>> import popgibbs as pg
    >>> key = jax.random.key(0)
    >>> instances = [{"x": np.array([0.1, 0.5, 1.2, 0.9])}, {"x": np.array([-1.0, -0.4, -0.7, 0.2])}]

    >>> def model(x):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    ...     with numpyro.plate("points", x.shape[0]):
    ...         numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)

    >>> class Location(eqx.Module):
    ...     log_scale: jax.Array = eqx.field(default=0.0, converter=jnp.asarray)
    ...
    ...     def __call__(self, data, latents, model):
    ...         observed = data.mask["points"]
    ...         precision = 1.0 + observed.sum()
    ...         mean = jnp.where(observed, data["x"], 0.0).sum() / precision
    ...         numpyro.sample("mu", dist.Normal(mean, jnp.exp(self.log_scale) / jnp.sqrt(precision)))

    >>> blocks = [pg.Block("mu", proposal=Location())]
    >>> sampler = pg.APG(model, data={"x": "points"}, blocks=blocks, example=instances[0])
    >>> posterior = sampler.sample(key, instances, num_sweeps=2, num_particles=4)
    >>> posterior
    Posterior(2 instances × 1 populations × 4 particles, 2 sweeps, blocks [mu])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Type checkers and the reference read these imports. At run time `__getattr__` makes each of them when its name is first
# used, so that the command line can answer before JAX is imported.
if TYPE_CHECKING:
    from popgibbs import distributions, statistics
    from popgibbs.apg import APG, Fit
    from popgibbs.describing import Description
    from popgibbs.distributions import Autoregressive, RefinedGuess
    from popgibbs.evaluation import Comparison, Method, compare, hmc_rws, tune_step_size, with_prior_proposals
    from popgibbs.model import StateSpaceModel, exchangeable
    from popgibbs.moves import HMC, Gibbs, Metropolis, Move, MoveInfo, Reweight
    from popgibbs.posterior import Posterior
    from popgibbs.proposals import BoundKernel, Counts, Enumerated, Kernel, Laplace, Neural, Prior
    from popgibbs.smc import Block, Bridge, NonCentredBlock, SequenceBlock, multinomial, residual, stratified, systematic
    from popgibbs.training import CheckpointError, Interrupted, Tempering

__version__ = "0.1.0"

__all__ = [
    "APG",
    "Block",
    "BoundKernel",
    "Bridge",
    "CheckpointError",
    "Comparison",
    "Counts",
    "Description",
    "Enumerated",
    "Fit",
    "Gibbs",
    "HMC",
    "Interrupted",
    "Kernel",
    "Laplace",
    "Method",
    "Metropolis",
    "Move",
    "MoveInfo",
    "Neural",
    "NonCentredBlock",
    "Posterior",
    "Prior",
    "RefinedGuess",
    "SequenceBlock",
    "StateSpaceModel",
    "Autoregressive",
    "Tempering",
    "Reweight",
    "with_prior_proposals",
    "compare",
    "distributions",
    "exchangeable",
    "hmc_rws",
    "multinomial",
    "residual",
    "statistics",
    "stratified",
    "systematic",
    "tune_step_size",
]

_ROOMS = {
    "popgibbs.apg": ("APG", "Fit"),
    "popgibbs.describing": ("Description",),
    "popgibbs.distributions": ("Autoregressive", "RefinedGuess"),
    "popgibbs.evaluation": ("Comparison", "Method", "compare", "hmc_rws", "tune_step_size", "with_prior_proposals"),
    "popgibbs.model": ("StateSpaceModel", "exchangeable"),
    "popgibbs.moves": ("Gibbs", "HMC", "Metropolis", "Move", "MoveInfo", "Reweight"),
    "popgibbs.posterior": ("Posterior",),
    "popgibbs.proposals": ("BoundKernel", "Counts", "Enumerated", "Kernel", "Laplace", "Neural", "Prior"),
    "popgibbs.smc": (
        "Block",
        "Bridge",
        "NonCentredBlock",
        "SequenceBlock",
        "multinomial",
        "residual",
        "stratified",
        "systematic",
    ),
    "popgibbs.training": ("CheckpointError", "Interrupted", "Tempering"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name) if name in _HOME else import_module(f"{__name__}.{name}")
    globals()[name] = value  # so that the next use is a plain lookup
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
