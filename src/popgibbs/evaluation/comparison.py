"""Samplers of one model side by side, at budgets that match."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import pandas as pd

from popgibbs._arguments import as_key, whole_number
from popgibbs._typing import KeyLike, PRNGKey
from popgibbs.apg import APG, SAMPLE_BATCH
from popgibbs.data import as_instances
from popgibbs.diagnostics import mean_and_error
from popgibbs.evaluation.baselines import hmc_rws, tune_step_size, with_prior_proposals
from popgibbs.training import progress_of

NUM_TUNING = 20  # instances on which step sizes are tuned by default


@dataclass(frozen=True, kw_only=True)
class Method:
    """A sampler and what it spends on an instance."""

    sampler: APG
    num_sweeps: int
    num_particles: int
    num_populations: int = 1
    evaluations: int = 1  # of the log joint, in a sweep of a particle

    @property
    def spent(self) -> dict[str, int]:
        """The paper's K, all particles, and the evaluations of the log joint in all."""
        k, particles = self.num_sweeps + 1, self.num_particles * self.num_populations
        return {"K": k, "L": particles, "evaluations": k * particles * self.evaluations}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What each method reached, the first being what the others are measured against."""

    methods: dict[str, Method]
    log_joint: dict[str, np.ndarray]  # by method: (instance, sweep), averaged over populations
    acceptance: dict[str, float]  # of the first block in the last sweep
    failed: dict[str, int]  # instances in which no particle had weight, whose numbers mean nothing

    @property
    def table(self) -> pd.DataFrame:
        """A row a method; `ahead` is the paired difference to the first, in nats, with its standard error."""
        reference = next(iter(self.log_joint.values()))[:, -1]
        rows = []
        for label, method in self.methods.items():
            last = self.log_joint[label][:, -1]
            with np.errstate(invalid="ignore"):  # where weights failed there may be a log joint of −inf
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
        """A matplotlib figure: how far each method is from where the first ends, over the paper's K.

        Means of paired differences and two standard errors, linear within a nat and logarithmic beyond.
        """
        from matplotlib.figure import Figure  # here, because importing it takes longer than all the rest
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        first = next(iter(self.methods))
        reference = self.log_joint[first][:, -1:]
        for number, (label, log_joint) in enumerate(self.log_joint.items()):
            ahead, colour = log_joint - reference, f"C{number}"
            mean, error = ahead.mean(axis=0), ahead.std(axis=0, ddof=1) / np.sqrt(len(ahead))
            if len(mean) == 1:  # all at once: the same for every K
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
    """A sampler and its baselines on the same instances, at the paper's budgets.

    All have K·L particles in all, over K sweeps of L or at once; HMC evaluates the log joint once more for every further
    leapfrog step. `rws` is a sampler trained without sweeps, by default `sampler` itself: its initial proposals are where
    HMC begins. `gibbs` has exact conditionals as its proposals, where you know them. BPG has the prior as the proposal of
    the blocks `bpg_blocks`, by default of all, and `bpg_particle_factor` times the particles. HMC's step size is tuned on
    the instances `tuning`, by default a few of those compared on. `sum_out_finite` is that of `hmc_rws`.
    """
    key = as_key(key)
    num_sweeps, num_particles = whole_number("num_sweeps", num_sweeps, 0), whole_number("num_particles", num_particles, 1)
    whole_number("bpg_particle_factor", bpg_particle_factor, 1)
    listed = as_instances(instances, sampler.axes)
    from_prior = with_prior_proposals(sampler, *bpg_blocks)
    for apg in (sampler, rws, gibbs, from_prior):  # what does not fit is told before anything is sampled
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
    """The paper's budgets; `moved` are the samplers by HMC, by the number of leapfrog steps."""
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
        # Chains by themselves, without weights, are populations of one particle.
        chains: Any = {"num_sweeps": num_sweeps, "num_particles": 1, "num_populations": num_particles}
        methods["Gibbs"] = Method(sampler=gibbs, **chains)
        methods["Gibbs, resampled start"] = Method(sampler=gibbs, **in_sweeps)
    return methods


def hmc_label(leapfrog: int) -> str:
    return f"HMC-RWS, LF={leapfrog}"


def run_methods(
    key: PRNGKey, methods: Mapping[str, Method], instances: Any, *, batch_size: int = SAMPLE_BATCH, progress: bool = True
) -> Comparison:
    """Each method on the same instances with the same key."""
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
