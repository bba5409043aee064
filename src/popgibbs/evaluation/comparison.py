"""Samplers of one model side by side, at matched budgets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from popgibbs._arguments import as_key, whole_number
from popgibbs._typing import KeyLike, PRNGKey
from popgibbs.apg import APG, SAMPLE_BATCH
from popgibbs.data import as_instances
from popgibbs.diagnostics import mean_and_error
from popgibbs.evaluation.baselines import hmc_rws, tune_step_size, with_prior_proposals
from popgibbs.training import progress_of

if TYPE_CHECKING:
    import pandas

NUM_TUNING = 20  # instances on which step sizes are tuned by default


@dataclass(frozen=True, kw_only=True)
class Method:
    """A sampler and its budget per instance.

    Args:
        sampler: the sampler.
        num_sweeps: sweeps after the initial proposal.
        num_particles: particles per population.
        num_populations: independent populations per instance.
        evaluations: evaluations of the log joint per particle and sweep: HMC needs one per leapfrog step.

    Examples:
        >>> pg.Method(sampler=sampler, num_sweeps=19, num_particles=10).spent
        {'K': 20, 'L': 10, 'evaluations': 200}
    """

    sampler: APG
    num_sweeps: int
    num_particles: int
    num_populations: int = 1
    evaluations: int = 1

    @property
    def spent(self) -> dict[str, int]:
        """The paper's K, the particles L of all populations, and the total evaluations of the log joint."""
        k, particles = self.num_sweeps + 1, self.num_particles * self.num_populations
        return {"K": k, "L": particles, "evaluations": k * particles * self.evaluations}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The results of `compare`, by method; the first method is the reference for the others.

    Args:
        methods: each method with its budget.
        log_joint: (instance, sweep) for each method, averaged over particles by weight and over populations; the first
            entry along the sweeps is the initial proposal.
        acceptance: the mean acceptance of the first block in the last sweep.
        failed: the number of instances in which every particle lost its weight; their numbers mean nothing.

    Examples:
        >>> comparison = pg.compare(key, sampler, instances, num_sweeps=1, num_particles=2, leapfrog=(), progress=False)
        >>> comparison.log_joint["APG"].shape, comparison.failed["APG"]
        ((2, 2), 0)
    """

    methods: dict[str, Method]
    log_joint: dict[str, np.ndarray]
    acceptance: dict[str, float]
    failed: dict[str, int]

    @property
    def table(self) -> "pandas.DataFrame":
        """One row per method; `ahead` is the paired difference to the first in nats, `ahead_se` its standard error."""
        import pandas as pd  # here, because it is slow to import

        reference = next(iter(self.log_joint.values()))[:, -1]
        rows = []
        for label, method in self.methods.items():
            last = self.log_joint[label][:, -1]
            with np.errstate(invalid="ignore"):  # failed weights may give a log joint of −inf
                (mean, error), (ahead, ahead_error) = mean_and_error(last), mean_and_error(last - reference)
            rows.append(
                {
                    "method": label,
                    **method.spent,
                    "log_joint": mean,
                    "log_joint_se": error,
                    "ahead": ahead,
                    "ahead_se": ahead_error,
                    "acceptance": self.acceptance[label],
                    "failed": self.failed[label],
                }
            )
        return pd.DataFrame(rows).set_index("method")

    def plot(self) -> Any:
        """A Matplotlib figure of the log joint over the paper's K, minus the final log joint of the first method.

        Lines are means of paired differences and bands two standard errors; the axis is linear within one nat and
        logarithmic beyond.
        """
        from matplotlib.figure import Figure  # here, because Matplotlib is slow to import
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        first = next(iter(self.methods))
        reference = self.log_joint[first][:, -1:]
        for number, (label, log_joint) in enumerate(self.log_joint.items()):
            ahead, colour = log_joint - reference, f"C{number}"
            mean, error = ahead.mean(axis=0), ahead.std(axis=0, ddof=1) / np.sqrt(len(ahead))
            if len(mean) == 1:  # no sweeps: the same for every K
                axes.axhline(mean[0], color=colour, linestyle="--", label=label)
                continue
            k = np.arange(1, len(mean) + 1)
            axes.plot(k, mean, color=colour, label=label)
            axes.fill_between(k, mean - 2 * error, mean + 2 * error, color=colour, alpha=0.2, linewidth=0)
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set(xlabel="K (1 is the initial proposal)", ylabel=f"log joint − {first}'s at the end")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        return figure


def compare(
    key: KeyLike,
    sampler: APG,
    instances: Any,
    *,
    num_sweeps: int = 19,
    num_particles: int = 10,
    rws: APG | None = None,
    gibbs: APG | None = None,
    bpg_blocks: Sequence[str] = (),
    bpg_particle_factor: int = 1,
    leapfrog: Sequence[int] = (1, 5, 10),
    sum_out_finite: bool = True,
    tuning: Any = None,
    batch_size: int = SAMPLE_BATCH,
    progress: bool = True,
) -> Comparison:
    """Compare a sampler with its baselines on the same instances, at the budgets of the paper's section 6.

    Every method draws K·L particles in total, either L in each of K = `num_sweeps` + 1 sweeps or all at once (RWS). HMC
    evaluates the log joint once per leapfrog step, so that with one step it spends as much as APG.

    Args:
        key: a random key or an integer seed.
        sampler: the trained sampler, reported as APG.
        instances: as for `APG.sample`.
        num_sweeps: sweeps after the initial proposal.
        num_particles: L.
        rws: a sampler trained without sweeps, by default `sampler`; HMC starts from its initial proposals.
        gibbs: a sampler whose proposals are exact conditionals, if you know them.
        bpg_blocks: the names of the blocks for which BPG proposes from the prior, by default all.
        bpg_particle_factor: multiplies the particles of BPG.
        leapfrog: one HMC baseline for each of these numbers of leapfrog steps; `()` leaves HMC out.
        sum_out_finite: as for `hmc_rws`.
        tuning: instances on which to tune HMC's step size, by default the first 20 of `instances`.
        batch_size: instances that are sampled at once.
        progress: show a progress bar.

    Returns:
        A `Comparison`, with the methods "APG", "RWS", "BPG", "HMC-RWS, LF=…", "Gibbs" and "Gibbs, resampled start".

    Raises:
        ValueError: before anything is sampled, if an instance does not fit one of the samplers.

    Examples:
        >>> comparison = pg.compare(key, sampler, instances, num_sweeps=1, num_particles=2, leapfrog=(), progress=False)
        >>> list(comparison.table.index)
        ['APG', 'RWS', 'BPG']
        >>> int(comparison.table.loc["APG", "evaluations"])
        4
    """
    key = as_key(key)
    num_sweeps, num_particles = whole_number("num_sweeps", num_sweeps, 0), whole_number("num_particles", num_particles, 1)
    whole_number("bpg_particle_factor", bpg_particle_factor, 1)
    listed = as_instances(instances, sampler.axes)
    from_prior = with_prior_proposals(sampler, *bpg_blocks)
    for apg in (sampler, rws, gibbs, from_prior):  # mismatches are reported before anything is sampled
        if apg is not None:
            apg.check(listed[0])
    key_tune, key_sample = jax.random.split(key)
    tuned_on = listed[:NUM_TUNING] if tuning is None else tuning
    first = rws or sampler

    def hmc(steps: int) -> APG:
        fresh = hmc_rws(first, step_size=1.0, num_steps=steps, sum_out_finite=sum_out_finite)
        return tune_step_size(fresh, key_tune, tuned_on, num_sweeps=max(num_sweeps, 1))

    moved = {steps: hmc(steps) for steps in leapfrog}
    budget: Any = {"num_sweeps": num_sweeps, "num_particles": num_particles}
    methods = matched(sampler, rws=first, bpg=from_prior, moved=moved, gibbs=gibbs, **budget)
    methods["BPG"] = replace(methods["BPG"], num_particles=bpg_particle_factor * num_particles)
    return run_methods(key_sample, methods, listed, batch_size=batch_size, progress=progress)


def matched(
    sampler: APG,
    *,
    rws: APG,
    bpg: APG,
    moved: Mapping[int, APG],
    gibbs: APG | None = None,
    num_sweeps: int,
    num_particles: int,
) -> dict[str, Method]:
    """Methods at the paper's budgets; `moved` holds the HMC samplers by their number of leapfrog steps."""
    in_sweeps: Any = {"num_sweeps": num_sweeps, "num_particles": num_particles}
    all_at_once: Any = {"num_sweeps": 0, "num_particles": (num_sweeps + 1) * num_particles}
    methods = {
        "APG": Method(sampler=sampler, **in_sweeps),
        "RWS": Method(sampler=rws, **all_at_once),
        "BPG": Method(sampler=bpg, **in_sweeps),
    }
    for steps, apg in moved.items():
        methods[hmc_label(steps)] = Method(sampler=apg, evaluations=steps, **in_sweeps)
    if gibbs is not None:
        # Independent chains without weights are populations of one particle.
        chains: Any = {"num_sweeps": num_sweeps, "num_particles": 1, "num_populations": num_particles}
        methods["Gibbs"] = Method(sampler=gibbs, **chains)
        methods["Gibbs, resampled start"] = Method(sampler=gibbs, **in_sweeps)
    return methods


def hmc_label(leapfrog: int) -> str:
    return f"HMC-RWS, LF={leapfrog}"


def run_methods(
    key: PRNGKey, methods: Mapping[str, Method], instances: Any, *, batch_size: int = SAMPLE_BATCH, progress: bool = True
) -> Comparison:
    """Run each method on the same instances with the same key."""
    log_joint, acceptance, failed = {}, {}, {}
    listed = list(methods.items())
    for label, method in progress_of("methods", listed) if progress else listed:
        posterior = method.sampler.sample(
            key,
            instances,
            num_sweeps=method.num_sweeps,
            num_particles=method.num_particles,
            num_populations=method.num_populations,
            batch_size=batch_size,
        )
        log_joint[label] = posterior.mean_log_joint.mean(axis=1)
        acceptance[label] = float(posterior.acceptance[:, :, -1, 0].mean())
        failed[label] = int(posterior.degenerate.sum())
    return Comparison(methods=dict(methods), log_joint=log_joint, acceptance=acceptance, failed=failed)
