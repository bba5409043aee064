"""Measures of the learned curve and of the inferred assignments."""

import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment

from popgibbs._typing import Values
from popgibbs.paper.dmm.data import RADIUS
from popgibbs.paper.dmm.model import NUM_CLUSTERS, DeepMixture
from popgibbs.paper.experiment import Evaluated

NUM_PARTS = 12
CLEARANCE = 0.4  # assignments are compared on points that are farther than this from every other ring


def radius(evaluated: Evaluated) -> float:
    """The mean distance of the learned curve from its own mean, over h."""
    curve, centre = _curve(evaluated.apg.built.model)
    return float(np.linalg.norm(curve - centre, axis=-1).mean())


def coverage(evaluated: Evaluated) -> list[float]:
    """The share of all points that posterior draws place on each twelfth of the circle about the curve's mean."""
    model, posterior = evaluated.apg.built.model, evaluated.posterior
    _, centre = _curve(model)
    h = np.concatenate([posterior[i]["h"][:, 0].ravel() for i in range(len(posterior))])
    angle = np.arctan2(*(np.asarray(model.decode(jnp.asarray(h))) - centre).T)
    counts = np.bincount(np.floor((angle / (2 * np.pi) % 1.0) * NUM_PARTS).astype(int) % NUM_PARTS, minlength=NUM_PARTS)
    return [float(share) for share in counts / counts.sum()]


def _curve(model: DeepMixture) -> tuple[np.ndarray, np.ndarray]:
    curve = np.asarray(model.decode((jnp.arange(1200) + 0.5) / 1200))
    return curve, curve.mean(axis=0)


def assignment_accuracy(evaluated: Evaluated) -> float:
    """The share of clear points whose cluster in a posterior draw is their own, after each draw's best relabelling."""
    agree, compared = 0, 0
    for i in range(len(evaluated.posterior)):
        truth = {name: np.asarray(value[i]) for name, value in evaluated.truth.items()}
        clear = clear_points(np.asarray(evaluated.instances["x"][i]), truth)
        for population in evaluated.posterior[i]["c"]:
            agree += best_agreement(truth["c"][clear], population[0][clear])
            compared += int(clear.sum())
    return agree / compared if compared else float("nan")


def clear_points(x: np.ndarray, truth: Values) -> np.ndarray:
    """Which points are far from every ring except their own."""
    distance = np.abs(np.linalg.norm(x[:, None] - truth["mu"], axis=-1) - RADIUS)
    own = np.arange(NUM_CLUSTERS) == np.asarray(truth["c"])[:, None]
    return np.all((distance > CLEARANCE) | own, axis=1)


def best_agreement(truth: np.ndarray, found: np.ndarray) -> int:
    """How many labels agree under the best one-to-one renaming of those found."""
    counts = np.zeros((NUM_CLUSTERS, NUM_CLUSTERS), int)
    np.add.at(counts, (truth, found), 1)
    return int(counts[linear_sum_assignment(-counts)].sum())
