"""The paper's comparisons on the Gaussian mixture, with the paper's networks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from popgibbs.apg import APG
from popgibbs.evaluation import Method, matched, with_prior_proposals
from popgibbs.moves import Metropolis
from popgibbs.paper.gmm import GMM
from popgibbs.paper.gmm.experiment import kl_global
from popgibbs.paper.gmm.proposals import ExactGlobals, Joint
from popgibbs.paper.study import Learning, Preset, Samplers, Setting, Study
from popgibbs.proposals import Enumerated
from popgibbs.smc import Block

SIZE = {"points": 100}
MORE = "BPG, 100 × the particles"


def methods(samplers: Samplers, moved: Mapping[int, APG], *, num_sweeps: int, num_particles: int) -> dict[str, Method]:
    """All methods start from the paper's single layer, except the last, which starts from seeds.

    APG with Metropolis moves has the proposals and the start of APG, but after the start its weights stay equal.
    """
    apg, rws = samplers["paper"], samplers["rws"]
    exact = [Block("tau", "mu", proposal=ExactGlobals()), Block("c", proposal=Enumerated())]
    gibbs = apg.with_blocks(exact, initial=rws)
    accepting = [block.with_move(Metropolis()) for block in apg.blocks]
    bpg = with_prior_proposals(apg, "tau,mu")
    budget: Any = {"num_sweeps": num_sweeps, "num_particles": num_particles}
    found = matched(apg, rws=rws, bpg=bpg, moved=moved, gibbs=gibbs, **budget)
    in_sweeps = found["APG"]
    return {
        **found,
        "Gibbs, APG's start": replace(in_sweeps, sampler=apg.with_blocks(exact, initial=apg)),
        "APG, Metropolis": replace(in_sweeps, sampler=apg.with_blocks(accepting)),
        "BPG, all blocks": replace(in_sweeps, sampler=with_prior_proposals(apg)),
        "APG, seeded start": replace(in_sweeps, sampler=samplers["default"]),
    }


def one_instance(methods: Mapping[str, Method]) -> dict[str, Method]:
    """The methods of the convergence figure, in which the paper gives BPG a hundred times the particles."""
    left_out = ("RWS", "APG, Metropolis", "BPG", "BPG, all blocks", "Gibbs, resampled start")
    many = replace(methods["BPG"], num_particles=100 * methods["BPG"].num_particles)
    return {label: method for label, method in methods.items() if label not in left_out} | {MORE: many}


def strategies(samplers: Samplers) -> dict[str, APG]:
    """Blocks {μ, τ}, {c} and the single block {μ, τ, c}, with the same networks."""
    apg = samplers["paper"]
    parts = [block.proposal for block in apg.built.blocks]
    return {"decomposed": apg, "joint": apg.with_blocks([Block("tau", "mu", "c", proposal=Joint(*parts))])}


FULL = Preset(
    settings=(Setting(SIZE, 20_000),),
    num_particles=10,
    num_runs=100,
    budget_ks=(1, 2, 5, 10, 20, 50, 100),
    budget_instances=1000,
    learning_ks=(2, 5, 10, 20),
    learning_steps=20_000,
    pictures=(SIZE,),
    scaled_down="",
)
HMC_REASON = (
    "each step size is tuned to an acceptance of 0.8 and assignments are summed out exactly, after which ten leapfrog "
    "steps gain little over five"
)

STUDY = Study(
    experiment=GMM,
    variants=("paper", "rws", "default"),
    methods=methods,
    one_instance=one_instance,
    strategies=strategies,
    learning=Learning("paper", kl_global, "KL(exact ‖ learned) of the global update", budget=100),
    presets={
        "quick": replace(
            FULL,
            settings=(Setting(SIZE, 500),),
            budget_ks=(1, 2, 10, 50),
            budget_instances=100,
            learning_ks=(2, 20),
            learning_steps=4000,
            learning_batch=5,
            scaled_down="500 instances instead of 20,000; the fixed budget on 100 instances, for four K; "
            "KL for two K, over 4,000 training steps of 5 instances instead of 20,000 of 20",
        ),
        "paper": FULL,
    },
    paper={
        "log_joint": {
            "100 points": {
                "APG, K=5": -481.6,
                "APG, K=10": -455.6,
                "APG": -446.9,
                "RWS": -765.1,
                "BPG": -668.8,
                "HMC-RWS, LF=1": -659.4,
                "HMC-RWS, LF=5": -542.0,
                "HMC-RWS, LF=10": -467.3,
                "Gibbs": -457.3,
            }
        }
    },
    limits={},
    reasons={
        "BPG": "here it also starts from the prior, and every sweep replaces each cluster by the best of ten draws from "
        "the prior, regardless of what was found before; the paper does not say how its BPG starts",
        "Gibbs": "each chain starts from one draw of RWS, and the errors of that draw take many sweeps to correct",
        **{f"HMC-RWS, LF={steps}": HMC_REASON for steps in (1, 5, 10)},
    },
)
