"""Other samplers of the same model, which show how much the proposals, the sweeps and the gradients each contribute.

All of them are `APG`s with different blocks, so that the same code runs, weighs and measures them:

- reweighted wake-sleep (RWS) is the initial proposal alone, `num_sweeps=0`;
- bootstrapped population Gibbs (BPG) proposes from the prior;
- HMC-RWS moves the samples of RWS by Hamiltonian Monte Carlo;
- Gibbs proposes from exact conditionals, which the user supplies, and also starts from RWS: `APG(..., initial=...)`.
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

STEP_SIZES = (1e-6, 10.0)  # the range of the search; a thousand sharp dimensions need very small steps
WITHOUT_HMC = "compare(..., leapfrog=()) leaves HMC out"
NUM_TRIALS = 8  # bisections, after which the step size is known to a few percent


def with_prior_proposals(apg: APG, *names: str) -> APG:
    """The same sampler with the prior as the proposal of some blocks: BPG of the paper, section 6.1.

    Args:
        apg: the sampler whose other blocks and initial proposals are kept.
        *names: the blocks that propose from the prior. Without names all blocks do, and the initial particles are drawn
            from the prior too.

    Returns:
        A new sampler, which is checked when it meets its first instance.

    Raises:
        ValueError: if no block has one of the names.

    Examples:
        >>> bpg = pg.with_prior_proposals(sampler, "mu")
        >>> bpg.blocks[0].proposal
        Prior()
    """
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
    """The initial samples of a sampler, moved by HMC on all continuous sites at once: HMC-RWS of the paper, section 6.1.

    Args:
        apg: a sampler that has met an instance; its initial proposals draw the first particles.
        step_size: HMC's step size in unconstrained space; `tune_step_size` finds one.
        num_steps: leapfrog steps per transition.
        sum_out_finite: sum finite sites out of the density that HMC follows, or else hold them fixed while the
            continuous sites move. In both cases they are then drawn from their exact conditional.

    Returns:
        A new sampler, with one HMC transition per sweep.

    Raises:
        ValueError: if the model has no continuous sites or has discrete sites without a finite support, or if `apg` has
            not met an instance.

    Examples:
        >>> hmc = pg.hmc_rws(sampler, step_size=0.1, num_steps=5)
        >>> [block.name for block in hmc.blocks]
        ['mu']
        >>> hmc.initial is sampler
        True
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
    """Tune the step size of a sampler whose first block moves by HMC, by bisection on its acceptance rate.

    Larger steps are accepted less often. Acceptance may be lower near the modes than near the initial samples, so the
    rate is measured over the second half of the sweeps.

    Args:
        apg: a sampler whose first block has the move `HMC`, such as one from `hmc_rws`.
        key: a random key or an integer seed.
        instances: instances to sample, best from the training set.
        acceptance: the acceptance rate to reach, between 0 and 1.
        num_sweeps: sweeps per trial; pass as many as you will sample with.
        num_particles: particles per instance.

    Returns:
        The sampler with the tuned step size.

    Examples:
        >>> hmc = pg.hmc_rws(sampler, step_size=1.0, num_steps=2)
        >>> tuned = pg.tune_step_size(hmc, key, instances, num_sweeps=1, num_particles=2)
        >>> 1e-6 < tuned.blocks[0].move.step_size < 10.0
        True
    """
    key, listed = as_key(key), as_instances(instances, apg.axes)
    apg.check(listed[0])
    low, high = np.log(STEP_SIZES)
    for _ in range(NUM_TRIALS):
        middle = (low + high) / 2
        # As an array the step size is an input of the compiled code, so a new one does not compile it again.
        tried = _with_step_size(apg, jnp.exp(middle))
        posterior = tried.sample(key, listed, num_sweeps=num_sweeps, num_particles=num_particles)
        # The second half only: the first sweeps leave the initial samples, where gradients are steep.
        rate = float(np.mean(posterior.acceptance[:, :, num_sweeps // 2 + 1 :, 0]))
        low, high = (middle, high) if rate > acceptance else (low, middle)
    return _with_step_size(apg, float(np.exp((low + high) / 2)))


def _with_step_size(apg: APG, step_size: Any) -> APG:
    def where(sampler: Any) -> Any:
        return sampler.blocks[0].move.step_size

    return apg.like(eqx.tree_at(where, apg.built, step_size))
