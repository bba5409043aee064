"""The Gaussian mixture (the paper, section 6.2 and appendix F.1)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from popgibbs._compiling import initialised
from popgibbs._typing import PRNGKey, Values
from popgibbs.apg import APG
from popgibbs.data import Data
from popgibbs.diagnostics import mean_of
from popgibbs.moves import Metropolis, Reweight
from popgibbs.paper.experiment import TRAINED, Experiment, Measure, MixtureDrawing, Size, Training, Variant, check_plane
from popgibbs.paper.gmm.data import simulate
from popgibbs.paper.gmm.model import mixture
from popgibbs.paper.gmm.proposals import Assignments, Globals, Seeded, Statistics, exact_globals
from popgibbs.smc import Block

DATA = {"x": "points"}


def build(variant: str, key: PRNGKey, size: Size) -> APG:
    """A fresh sampler.

    `default` starts from seeds and accepts assignments point by point; `paper` starts from the paper's single layer and
    reweights every block; `rws` has the same networks and no sweeps.
    """
    del size
    paper = variant in ("paper", "rws")

    def networks(key: PRNGKey) -> tuple[Globals, Assignments]:
        key_globals, key_assignments, key_first = jax.random.split(key, 3)
        first = Statistics(2, key=key_first) if paper else Seeded()
        return Globals(first, key=key_globals), Assignments(key=key_assignments)

    update, assignments = initialised(networks, key)
    return APG(
        mixture,
        data=DATA,
        blocks=[
            Block("tau", "mu", proposal=update, assigned_by="c", exchangeable=None if paper else "clusters"),
            Block("c", proposal=assignments, move=Reweight() if paper else Metropolis()),
        ],
        example={"x": np.random.default_rng(0).normal(size=(8, 2))},
    )


def kl_global(apg: APG, key: PRNGKey, num_instances: int = 1000, num_points: int = 60) -> dict[str, float]:
    """KL from the exact to the learned global update at the true assignments, summed over clusters and axes."""
    return mean_of(np.asarray(_kls(apg.built.blocks[0].proposal, key, num_instances, num_points)))


@eqx.filter_jit
def _kls(learned: Any, key: PRNGKey, num_instances: int, num_points: int) -> jax.Array:
    def one(key: PRNGKey) -> jax.Array:
        instance, truth = simulate(key, num_points)
        data = Data(instance, {"points": jnp.ones(num_points, bool)})
        return jnp.sum(exact_globals(data, truth["c"]).kl(learned.update(data, truth["c"])))

    return jax.vmap(one)(jax.random.split(key, num_instances))


def draw(model: Any, instance: Values, sample: Mapping[str, np.ndarray]) -> MixtureDrawing:
    """The clusters as ellipses of two standard deviations."""
    del model
    angle = np.linspace(0, 2 * np.pi, 100)[:, None]
    circle = np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)
    outlines = sample["mu"][:, None] + 2 * sample["tau"][:, None] ** -0.5 * circle
    return MixtureDrawing(np.asarray(instance["x"]), sample["c"], sample["mu"], outlines)


TRAINING = Training(
    num_steps=10_000, learning_rate=1e-2, num_sweeps=4, num_particles=10, batch_size=20, size={"points": 60}
)
# The paper's single layer needs more steps than seeds, which have no parameters.
FROM_A_LAYER = replace(TRAINING, num_steps=20_000)
# As many particles per step as five sweeps of ten.
ONE_SHOT = replace(FROM_A_LAYER, num_sweeps=0, num_particles=50)

EXPERIMENT = Experiment(
    name="gmm",
    about="Gaussian mixture: 3 clusters in the plane, any number of points",
    data=DATA,
    build=build,
    variants={
        "default": Variant(training=TRAINING),
        "paper": Variant(training=FROM_A_LAYER),
        "rws": Variant(training=ONE_SHOT, one_shot=True),
    },
    simulate=simulate,
    check=check_plane,
    measures={
        "kl_global": Measure(
            "KL(exact ‖ learned) of the globals",
            lambda evaluated: kl_global(evaluated.apg, evaluated.key),
            lambda kl: f"{kl['mean']:.2g} ± {kl['se']:.1g}",
        )
    },
    draw=draw,
    size={"points": 100},
    generating=lambda model: model,
    is_generated=True,
    num_populations=9,
    shipped=TRAINED / "gmm",
)
