"""The demonstration: train a mixture sampler, sample posteriors of larger instances, compare with the truth."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from popgibbs.paper.gmm import GMM
from popgibbs.paper.plots import figures
from popgibbs.paper.plots.pictures import draw_samples
from popgibbs.paper.reports import evaluation_table
from popgibbs.paper.tables import evaluate, held_out, log_joint_at

NUM_POINTS = 150  # training instances have 60


def run(directory: Path, *, num_steps: int, seed: int, console: Console) -> None:
    """Train, sample, print a table, write figures."""
    directory.mkdir(parents=True, exist_ok=True)
    key_fit, key_sample = jax.random.split(jax.random.key(seed))
    training = replace(GMM.variants["default"].training, num_steps=num_steps)
    console.print(
        f"Training proposals for a mixture of 3 clusters on simulated instances of {training.size['points']} points\n"
        "(checking and compiling the sampler takes about half a minute) ..."
    )
    fit = GMM.fit(key_fit, "default", training)
    console.print(f"Sampling posteriors of 200 new instances of {NUM_POINTS} points ...")
    result, posterior = evaluate(
        GMM,
        fit.sampler,
        num_instances=200,
        size={"points": NUM_POINTS},
        num_sweeps=19,
        num_particles=10,
        num_populations=4,
        seed=seed + 1,
    )
    console.print(evaluation_table(GMM, {"trained just now": result}))
    instances, truth = held_out(GMM, seed + 1, 200, {"points": NUM_POINTS})
    gap = posterior.mean_log_joint.mean(axis=1) - log_joint_at(GMM, fit.sampler, instances, truth)[:, None]
    labels = [block.name for block in fit.sampler.blocks]
    drawings: Any = draw_samples(GMM, fit.sampler, key_sample, instances)
    pictures = {
        "training.png": figures.training_curves(fit.history.steps, fit.history["loss"], fit.history["ess"], labels),
        "convergence.png": figures.convergence({"APG": gap}, "Gap to the exact posterior (0)"),
        "samples.png": figures.mixture_samples(drawings),
    }
    for name, figure in pictures.items():
        figures.save(figure, directory / name)
    console.print(f"Figures: {', '.join(str(directory / name) for name in pictures)}")
