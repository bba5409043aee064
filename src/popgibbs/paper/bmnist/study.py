"""The paper's comparisons on bouncing digits."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from popgibbs.apg import APG
from popgibbs.evaluation import Method, hmc_label, matched, with_prior_proposals
from popgibbs.paper.bmnist import BMNIST
from popgibbs.paper.study import Preset, Samplers, Setting, Study


def methods(samplers: Samplers, moved: Mapping[int, APG], *, num_sweeps: int, num_particles: int) -> dict[str, Method]:
    apg = samplers["default"]
    budget: Any = {"num_sweeps": num_sweeps, "num_particles": num_particles}
    found = matched(apg, rws=samplers["rws"], bpg=with_prior_proposals(apg, "what"), moved=moved, **budget)
    return {**found, "BPG, all blocks": replace(found["APG"], sampler=with_prior_proposals(apg))}


def _settings(num_short: int, num_long: int, chunk: int) -> tuple[Setting, ...]:
    """The paper's sizes: all methods on the first, for which it reports log joints, else those of its Table 2."""
    few = ("APG", "RWS", hmc_label(10))
    return (
        Setting({"digits": 5, "frames": 100}, num_long, chunk),
        Setting({"digits": 5, "frames": 20}, num_short, chunk, few),
        Setting({"digits": 3, "frames": 100}, num_long, chunk, few),
        Setting({"digits": 3, "frames": 20}, num_short, chunk, few),
    )


HMC_REASON = (
    "with a thousand sharp dimensions, HMC accepts only step sizes of about 0.0001, which move nothing far from where "
    "RWS put it"
)
TRACKED = tuple({"digits": digits, "frames": 100} for digits in (3, 4, 5))

STUDY = Study(
    experiment=BMNIST,
    variants=("default", "rws"),
    methods=methods,
    presets={
        "quick": Preset(
            settings=_settings(20, 6, 10),
            num_particles=5,
            tuning_instances=2,
            pictures=TRACKED,
            scaled_down="6 videos of 100 frames and 20 of 20 frames instead of 5,000 each, K·L=100 instead of 1,000",
        ),
        "paper": Preset(
            settings=_settings(5000, 5000, 10),
            num_particles=50,
            tuning_instances=4,
            pictures=TRACKED,
            scaled_down="log joints on the 5,000 videos of the squared errors instead of 10,000",
        ),
    },
    suffixes=(".png", ".gif"),
    paper={
        "log_joint": {
            "5 digits, 100 frames": {
                "APG, K=5": -70_600.0,
                "APG, K=10": -65_200.0,
                "APG": -62_000.0,
                "RWS": -167_300.0,
                "BPG": -188_400.0,
                "HMC-RWS, LF=1": -153_800.0,
                "HMC-RWS, LF=5": -140_500.0,
                "HMC-RWS, LF=10": -130_300.0,
            }
        },
        "squared_error": {
            "5 digits, 20 frames": {"RWS": 265.1, "HMC-RWS, LF=10": 261.2, "APG, K=10": 117.7, "APG": 103.8},
            "5 digits, 100 frames": {"RWS": 272.1, "HMC-RWS, LF=10": 267.9, "APG, K=10": 115.4, "APG": 102.3},
            "3 digits, 20 frames": {"RWS": 134.0, "HMC-RWS, LF=10": 124.1, "APG, K=10": 60.4, "APG": 58.9},
            "3 digits, 100 frames": {"RWS": 137.3, "HMC-RWS, LF=10": 127.4, "APG, K=10": 56.0, "APG": 55.7},
        },
    },
    limits={
        "squared_error": {
            f"{digits} digits, {frames} frames": limit for digits, limit in ((3, 35.0), (5, 60.0)) for frames in (20, 100)
        }
    },
    reasons={
        "RWS": "it selects from twenty times as many particles as HMC-RWS starts from",
        "BPG": "codes drawn from the prior never match the digits, so resampling a few of them does not help",
        **{hmc_label(steps): HMC_REASON for steps in (1, 5, 10)},
    },
)
