"""The deep generative mixture (the paper, section 6.3 and appendix F.2)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from popgibbs._compiling import initialised
from popgibbs._typing import PRNGKey, Values
from popgibbs.apg import APG
from popgibbs.moves import Metropolis, Reweight
from popgibbs.paper.dmm import paper, proposals
from popgibbs.paper.dmm.data import ring, simulate
from popgibbs.paper.dmm.measures import assignment_accuracy, coverage, radius
from popgibbs.paper.dmm.model import NOISE, NUM_CLUSTERS, Circle, Curve, DeepMixture
from popgibbs.paper.experiment import TRAINED, Experiment, Measure, MixtureDrawing, Size, Training, Variant, check_plane
from popgibbs.smc import Block
from popgibbs.training import Tempering

DATA = {"x": "points"}


def build(variant: str, key: PRNGKey, size: Size) -> APG:
    """A fresh sampler.

    `default` has proposals that see the decoder, and accepts centre by centre and point by point; `circle` is the same
    with a decoder that can only be a circle, `wide` with the noise of the authors' runs. `paper` has the paper's networks
    and reweights every block; `rws` has the same networks and no sweeps.
    """
    del size
    papers = variant in ("paper", "rws")

    def networks(key: PRNGKey) -> tuple[Any, Any, Any]:
        key_model, key_centres, key_points = jax.random.split(key, 3)
        decoder = Circle(key=key_model) if variant == "circle" else Curve(key=key_model)
        if papers:
            return decoder, paper.Centres(key=key_centres), paper.Points(key=key_points)
        return decoder, proposals.Centres(), proposals.Points(key=key_points)

    decoder, centres, points = initialised(networks, key)
    move, exchangeable = (Reweight(), None) if papers else (Metropolis(), "clusters")
    return APG(
        DeepMixture(decoder, noise=0.5 if variant == "wide" else NOISE),
        data=DATA,
        blocks=[
            Block("mu", proposal=centres, assigned_by="c", move=move, exchangeable=exchangeable),
            Block("c", "h", proposal=points, move=move),
        ],
        example={"x": np.random.default_rng(0).normal(size=(8, 2))},
    )


def check(instance: Values, where: str) -> None:
    check_plane(instance, where)
    if (count := np.shape(instance["x"])[0]) < NUM_CLUSTERS:
        raise ValueError(f"{where}: 'x' has {count} points, fewer than the mixture's {NUM_CLUSTERS} clusters")


def generating(model: Any) -> DeepMixture:
    """The learned model with the ring that generated the points in place of its decoder."""
    return DeepMixture(ring, noise=model.noise)


def draw(model: Any, instance: Values, sample: Mapping[str, np.ndarray]) -> MixtureDrawing:
    """The learned curve about each centre."""
    curve = np.asarray(model.decode(np.linspace(0, 1, 200, dtype=np.float32)))
    return MixtureDrawing(np.asarray(instance["x"]), sample["c"], sample["mu"], sample["mu"][:, None] + curve)


def reconstruct(model: Any, sample: Mapping[str, np.ndarray]) -> Values:
    """Each point at its place on its cluster's curve, without noise."""
    return {"x": np.asarray(model.decode(sample["h"])) + sample["mu"][sample["c"]]}


TEMPERED = Training(
    num_steps=6000,
    learning_rate=4e-3,
    num_sweeps=3,
    num_particles=8,
    batch_size=10,
    size={"points": 80},
    tempering=Tempering(start=0.005, min_ess_fraction=0.4, rate=1.5e-3),
)
# As many particles per step as four sweeps of eight. Weights of whole instances collapse at any temperature.
ONE_SHOT = replace(TEMPERED, num_sweeps=0, num_particles=32, tempering=None)

EXPERIMENT = Experiment(
    name="dmm",
    about="deep generative mixture: 4 clusters of one learned shape in the plane, any number of points",
    data=DATA,
    build=build,
    variants={
        "default": Variant(training=TEMPERED),
        "paper": Variant(training=TEMPERED),
        "rws": Variant(training=ONE_SHOT, one_shot=True),
        "wide": Variant(training=TEMPERED),
        "circle": Variant(training=TEMPERED),
    },
    simulate=simulate,
    check=check,
    measures={
        "radius": Measure("radius of the learned curve", radius, lambda value: f"{value:.3f}"),
        "coverage": Measure(
            "points in a twelfth of it", coverage, lambda shares: f"{min(shares):.1%} to {max(shares):.1%}"
        ),
        "assignment_accuracy": Measure("assignments that agree", assignment_accuracy, lambda value: f"{value:.1%}"),
    },
    draw=draw,
    size={"points": 600},
    num_populations=1,
    shipped=TRAINED / "dmm",
    generating=generating,
    reconstruct=reconstruct,
)
