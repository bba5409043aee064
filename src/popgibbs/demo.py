"""The demonstration: train a mixture sampler, sample posteriors of larger instances, compare with the truth."""

from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from popgibbs import figures
from popgibbs.api import APG
from popgibbs.experiments.gmm import GMM
from popgibbs.experiments.tables import evaluate, held_out, log_joint_at
from popgibbs.report import evaluation_table
from popgibbs.typing import PRNGKey, Values

NUM_STEPS = 5000
NUM_POINTS = 150  # training instances have 60


def run(directory: Path, *, num_steps: int, seed: int, console: Console) -> None:
    """Train, sample, print a table, write figures."""
    directory.mkdir(parents=True, exist_ok=True)
    training = GMM.training
    key_build, key_fit, key_sample = jax.random.split(jax.random.key(seed), 3)
    console.print(
        f"Training proposals for a mixture of 3 clusters on simulated instances of {training.num_points} points\n"
        "(the first half minute goes into checking the sampler and compiling it) ..."
    )
    fit = GMM.build("default", key_build).fit(
        key_fit,
        lambda key: GMM.simulate(key, training.num_points)[0],
        num_steps=num_steps,
        num_sweeps=training.num_sweeps,
        num_particles=training.num_particles,
        batch_size=training.batch_size,
        optimiser=training.optimiser(num_steps),
    )
    console.print(f"Sampling posteriors of 200 new instances of {NUM_POINTS} points ...")
    result, posterior = evaluate(
        GMM,
        fit.sampler,
        num_instances=200,
        num_points=NUM_POINTS,
        num_sweeps=19,
        num_particles=10,
        num_populations=4,
        seed=seed + 1,
    )
    console.print(evaluation_table({"trained just now": result}))
    instances, truth = held_out(GMM, seed + 1, 200, NUM_POINTS)
    gap = posterior.log_joint.mean(axis=1) - log_joint_at(fit.sampler, instances, truth)[:, None]
    labels = [block.label for block in fit.sampler.blocks]
    pictures = {
        "training.png": figures.training_curves(fit.history.steps, fit.history["loss"], fit.history["ess"], labels),
        "convergence.png": figures.convergence({"APG": gap}, "Gap to the exact posterior (0)"),
        "samples.png": _samples(fit.sampler, key_sample, instances),
    }
    for name, figure in pictures.items():
        figures.save(figure, directory / name)
    console.print(f"Figures: {', '.join(str(directory / name) for name in pictures)}")


def _samples(sampler: APG, key: PRNGKey, instances: Values) -> Figure:
    """One sample of two instances after chosen sweeps: the first particle of the resampled population."""
    chosen = {"x": instances["x"][:2]}
    posterior = sampler.sample(key, chosen, num_sweeps=0)
    shown = {"K=1": posterior}
    for title, more in [("K=2", 1), ("K=5", 3), ("K=20", 15)]:
        posterior = posterior.extend(key, more)
        shown[title] = posterior
    samples = [
        {title: {site: v[0, 0] for site, v in p.resampled(key)[i].items()} for title, p in shown.items()}
        for i in range(2)
    ]
    return figures.mixture_samples([np.asarray(x) for x in chosen["x"]], samples, list(shown))
