"""Other samplers of the same model, for comparison: what proposals, sweeps and gradients each bring.

All of them are `APG`s with other blocks, so that they are run, weighed and measured by the same code:

- reweighted wake-sleep (RWS) is the initial proposal alone, `num_sweeps=0`;
- with_prior_proposals population Gibbs (BPG) proposes from the prior;
- HMC-RWS moves the samples of RWS by Hamiltonian Monte Carlo;
- Gibbs has exact conditionals as proposals, which the user knows, and starts from RWS too: `APG(..., initial=...)`.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from popgibbs._arguments import as_key
from popgibbs._typing import KeyLike
from popgibbs.apg import APG
from popgibbs.data import as_instances
from popgibbs.moves import HMC
from popgibbs.proposals import Enumerated, Prior
from popgibbs.smc import Block

STEP_SIZES = (1e-6, 10.0)  # between which one is looked for; a thousand sharp dimensions need very small ones
WITHOUT_HMC = "compare(..., leapfrog=()) leaves HMC out"
NUM_TRIALS = 8  # which leaves a step size known to a few percent


def with_prior_proposals(apg: APG, *names: str) -> APG:
    """The same sampler with the prior as the proposal of the named blocks, or of all, which then also start from it."""
    known = [block.name for block in apg.blocks]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no block '{unknown[0]}'; there are {', '.join(known)}")
    blocks = [block.with_proposal(Prior()) if block.name in (names or known) else block for block in apg.blocks]
    if names:
        return apg.with_blocks(blocks, apg.initial)
    # As one block, all sites are drawn in the model's order, whatever the order of the blocks.
    sites = dict.fromkeys(site for block in apg.blocks for site in block.sites)
    return apg.with_blocks(blocks, apg.with_blocks([Block(*sites, proposal=Prior())]))


def hmc_rws(apg: APG, *, step_size: Any, num_steps: int, sum_out_finite: bool = True) -> APG:
    """Initial samples of `apg`, moved by HMC on all continuous sites at once.

    Finite sites are summed out, or with `sum_out_finite=False` held while the others move; either way they are then
    drawn from their exact conditional.
    """
    latent = [site for site in apg.built.sites if not site.observed]
    finite = [site.name for site in latent if site.support is not None]
    continuous = [site.name for site in latent if not site.discrete]
    if endless := [site.name for site in latent if site.discrete and site.support is None]:
        raise ValueError(f"HMC-RWS needs discrete sites to be finite; {endless} are not ({WITHOUT_HMC})")
    if not continuous:
        raise ValueError(f"HMC-RWS needs continuous sites; the model has none ({WITHOUT_HMC})")
    move = HMC(step_size=step_size, num_steps=num_steps)
    if sum_out_finite or not finite:
        blocks = [Block(*continuous, *finite, move=move)]
    else:
        blocks = [Block(*continuous, move=move), Block(*finite, proposal=Enumerated())]
    return apg.with_blocks(blocks, initial=apg)


def tune_step_size(
    apg: APG, key: KeyLike, instances: Any, *, acceptance: float = 0.8, num_sweeps: int = 10, num_particles: int = 4
) -> APG:
    """A sampler whose first block moves by HMC, with the step size at which that share of its moves is accepted.

    Larger steps are accepted less often, so it is found by bisection. Pass instances of the training set, and as many
    sweeps as there will be: nearer to the modes fewer moves may be accepted than near the initial samples.
    """
    key, listed = as_key(key), as_instances(instances, apg.axes)
    apg.check(listed[0])
    low, high = np.log(STEP_SIZES)
    for _ in range(NUM_TRIALS):
        middle = (low + high) / 2
        # As an array it is an input of compiled code, not a part of it: another step size is not another compilation.
        tried = _with_step_size(apg, jnp.exp(middle))
        posterior = tried.sample(key, listed, num_sweeps=num_sweeps, num_particles=num_particles)
        # Of the second half: the first sweeps leave the initial samples, where gradients are steep.
        rate = float(np.mean(posterior.acceptance[:, :, num_sweeps // 2 + 1 :, 0]))
        low, high = (middle, high) if rate > acceptance else (low, middle)
    return _with_step_size(apg, float(np.exp((low + high) / 2)))


def _with_step_size(apg: APG, step_size: Any) -> APG:
    def where(sampler: Any) -> Any:
        return sampler.blocks[0].move.step_size

    return apg.like(eqx.tree_at(where, apg.built, step_size))
