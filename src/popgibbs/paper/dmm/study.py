"""The paper's comparisons on the deep mixture."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from popgibbs.apg import APG
from popgibbs.evaluation import Method, matched, with_prior_proposals
from popgibbs.paper.dmm import DMM
from popgibbs.paper.study import Preset, Samplers, Setting, Study

SIZE = {"points": 600}


def methods(samplers: Samplers, moved: Mapping[int, APG], *, num_sweeps: int, num_particles: int) -> dict[str, Method]:
    """Each sampler uses the decoder that it learned; BPG uses that of the paper's networks."""
    bpg = with_prior_proposals(samplers["paper"], "mu")
    budget: Any = {"num_sweeps": num_sweeps, "num_particles": num_particles}
    found = matched(samplers["default"], rws=samplers["rws"], bpg=bpg, moved=moved, **budget)
    in_sweeps = found["APG"]
    return {
        **found,
        "BPG, all blocks": replace(in_sweeps, sampler=with_prior_proposals(samplers["paper"])),
        "APG, the paper's networks": replace(in_sweeps, sampler=samplers["paper"]),
    }


HMC_REASON = "it starts from RWS, whose decoder has not become a ring here, at the noise of 0.1 that the paper states"

STUDY = Study(
    experiment=DMM,
    variants=("default", "paper", "rws"),
    methods=methods,
    sum_out_finite=False,
    presets={
        "quick": Preset(
            settings=(Setting(SIZE, 50),),
            num_particles=10,
            pictures=(SIZE,),
            scaled_down="50 instances instead of 20,000",
        ),
        "paper": Preset(settings=(Setting(SIZE, 20_000),), num_particles=10, pictures=(SIZE,), scaled_down=""),
    },
    paper={
        "log_joint": {
            "600 points": {
                "APG, K=5": -2050.0,
                "APG, K=10": -2040.0,
                "APG": -2035.0,
                "RWS": -3172.0,
                "BPG": -4204.0,
                "HMC-RWS, LF=1": -2185.0,
                "HMC-RWS, LF=5": -2184.0,
                "HMC-RWS, LF=10": -2184.0,
            }
        }
    },
    limits={},
    reasons={
        "RWS": "weighing 600 points at once leaves one effective particle, from which no decoder is learned",
        "BPG": "it uses the decoder that was learned with sweeps, and only its centres come from the prior",
        **{f"HMC-RWS, LF={steps}": HMC_REASON for steps in (1, 5, 10)},
    },
)
