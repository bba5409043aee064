"""References by NumPyro's NUTS on a non-centred version of the model, compiled once for all instances."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numpyro.diagnostics import split_gelman_rubin
from numpyro.handlers import reparam
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam
from tools.gallery.moments import Moments, Values, continuous, moments

MOST_R_HAT = 1.02


def run(
    model: Callable[..., Any],
    non_centred: Sequence[str],
    instances: Sequence[Values],
    *,
    seed: int = 0,
    num_chains: int = 4,
    num_steps: int = 1_000,
    report: Callable[[], None] = lambda: None,
) -> Moments:
    """Moments of every latent number; instances whose R-hat is too large are flagged."""
    free = reparam(model, config={name: LocScaleReparam(0.0) for name in non_centred})

    @jax.jit  # around everything, so that the second instance compiles nothing
    def draw(key: jax.Array, instance: Values) -> dict[str, jax.Array]:
        sampler = MCMC(
            NUTS(free, target_accept_prob=0.9),
            num_warmup=num_steps // 2,
            num_samples=num_steps,
            num_chains=num_chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        sampler.run(key, **instance)
        return sampler.get_samples(group_by_chain=True)

    found = []
    for index, instance in enumerate(instances):
        drawn = draw(jax.random.fold_in(jax.random.key(seed), index), dict(instance))
        draws = {name: np.asarray(values, float) for name, values in drawn.items() if not name.endswith("_decentered")}
        worst = max(np.max(split_gelman_rubin(values)) for values in draws.values())
        flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in draws.items()}
        one = moments(continuous(flat))
        found.append(Moments(one.mean, one.sd, reliable=np.array([worst < MOST_R_HAT])))
        report()
    return Moments.stack(found)
