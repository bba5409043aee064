"""Use an installed popgibbs once from end to end: train, sample, summarise, save, load, and the command line.

    python tools/smoke.py     # with the Python of the environment that is tested

It uses public names only and checks no numbers beyond loose bounds: the question is whether the package runs here at all.
"""

import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import requires, version
from importlib.resources import files
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import popgibbs as pg

COMMAND = Path(sysconfig.get_path("scripts")) / "popgibbs"
KEY = jax.random.key(0)


def mixture(x: jax.Array) -> None:
    """s ~ Gamma(5, 5), μ_k ~ Normal(0, 3), c_n uniform, x_n ~ Normal(μ_c, s)."""
    scale = numpyro.sample("scale", dist.Gamma(5.0, 5.0))
    mu = numpyro.sample("mu", dist.Normal(jnp.zeros(2), 3.0).to_event(1))
    with numpyro.plate("points", x.shape[0]):
        c = numpyro.sample("c", dist.Categorical(jnp.full(2, 0.5)))
        numpyro.sample("x", dist.Normal(mu[c], scale), obs=x)


class Means(eqx.Module):
    """q(μ_k | x, c): Normal about the mean of a cluster's points; the first draw is about the mean of all of them."""

    slope: jax.Array
    log_scale: jax.Array

    def __call__(self, data: Any, latents: Any, model: Any) -> None:
        self._draw(data, jax.nn.one_hot(latents["c"], 2) * data.mask["points"][:, None])

    def initial(self, data: Any, latents: Any, model: Any) -> None:
        self._draw(data, jnp.broadcast_to(data.mask["points"][:, None], (data["x"].shape[0], 2)))

    def _draw(self, data: Any, owned: jax.Array) -> None:
        means = data["x"] @ owned / (jnp.sum(owned, axis=0) + 1.0)
        numpyro.sample("mu", dist.Normal(self.slope * means, jnp.exp(self.log_scale)).to_event(1))


def sampler() -> pg.APG:
    return pg.APG(
        mixture,
        data={"x": "points"},
        blocks=[
            pg.Block("mu", proposal=Means(jnp.float32(0.5), jnp.float32(0.5)), move=pg.Metropolis()),
            pg.Block("c", proposal=pg.Enumerated()),
            pg.Block("scale", proposal=pg.Prior(), move=pg.Metropolis()),
        ],
    )


def instances(*sizes: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [(random.normal(size=n) + random.choice([-4.0, 4.0], size=n)).astype(np.float32) for n in sizes]


def library(directory: Path) -> None:
    """What users write in Python."""
    with told("fit, with checkpoints"):
        budget: Any = {"num_sweeps": 2, "num_particles": 4, "batch_size": 2}
        run = directory / "run"
        fit = sampler().fit(KEY, instances(8, 8, 8), num_steps=4, **budget, progress=False, checkpoints=run)
    data = instances(6, 9)
    with told("sample"):
        with warnings.catch_warnings(action="ignore"):
            # Before NumPyro 0.22, values outside of a support have a finite density: weights are wrong and nothing fails.
            assert dist.Uniform(0.0, 1.0).log_prob(2.0) == -jnp.inf
        posterior = fit.sampler.sample(KEY, data, num_sweeps=3, num_particles=5, num_populations=2)
        assert np.isfinite(posterior.log_evidence).all()
        assert ((posterior.ess > 0) & (posterior.ess <= 5 + 1e-3)).all()
    with told("summary, ArviZ"):
        assert len(posterior.summary()) == 2 * (1 + 2) + 6 + 9
        draws = posterior.to_arviz()
        assert draws["posterior"]["mu"].shape == (2, 5, 2, 2)
    with told("save and load"):
        fit.sampler.save(directory / "saved")
        for place in ("saved", "run"):
            fresh = sampler()
            fresh.sample(KEY, data, num_sweeps=0)  # a sampler knows its arrays once it has met an instance
            again = fresh.load(directory / place).sample(KEY, data, num_sweeps=3, num_particles=5, num_populations=2)
            np.testing.assert_array_equal(again.log_evidence, posterior.log_evidence)


def command_line(directory: Path) -> None:
    """What users type; the shipped sampler of the mixture was saved by other versions than these."""
    with told("popgibbs show gmm"):
        assert "gmm" in popgibbs("show", "gmm")
        assert "Missing argument" in popgibbs("show", expected=2)
    with told("popgibbs sample gmm"):
        import arviz as az

        np.savez(directory / "data.npz", x=np.random.default_rng(0).normal(size=(2, 12, 2)).astype(np.float32))
        out = directory / "posterior.nc"
        popgibbs("sample", "gmm", str(directory / "data.npz"), "--out", str(out), "--num-sweeps", "2")
        assert az.from_netcdf(str(out))["posterior"]["mu"].shape == (4, 10, 2, 3, 2)


def popgibbs(*arguments: str, expected: int = 0) -> str:
    done = subprocess.run([COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != expected:
        raise RuntimeError(f"popgibbs {' '.join(arguments)} ends with {done.returncode}:\n{done.stdout}")
    return done.stdout


@contextmanager
def told(step: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    print(f"  {step}: {time.perf_counter() - begin:.1f} s", flush=True)


def main() -> None:
    names = [re.split(r"[^\w.-]", line)[0] for line in requires("popgibbs") or [] if "extra ==" not in line]
    print(f"Python {sys.version.split()[0]}, " + ", ".join(f"{name} {version(name)}" for name in names))
    assert pg.__version__ == version("popgibbs")
    assert files(pg).joinpath("py.typed").is_file()
    with tempfile.TemporaryDirectory() as directory:
        library(Path(directory))
        command_line(Path(directory))


if __name__ == "__main__":
    main()
