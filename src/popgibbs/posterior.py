"""The posterior of many instances: weighted samples without their padding, evidence, diagnostics, ArviZ."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.random import fold_in

from popgibbs._arguments import as_key, whole_number
from popgibbs._reuse import computed_once
from popgibbs._typing import KeyLike, PRNGKey
from popgibbs.data import Bucket, unpad
from popgibbs.diagnostics import combined_log_evidence, log_evidence_error, relabelled, weak_blocks
from popgibbs.running import Runner
from popgibbs.smc import Info, Population, normalise, systematic

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Part:
    """The results of one bucket."""

    bucket: Bucket
    population: Population  # axes (instance, population, particle, ...)
    info: Info  # axes (sweep, instance, population, ...); the initial step is sweep 0


class Posterior:
    """Weighted samples, evidence and diagnostics of every instance, as `APG.sample` returns them.

    `posterior[i]` is a dict of the samples of instance i by site name, each with axes (population, particle, ...) and
    without padding. Arrays over all instances have axes (instance, population, ...), then sweep and block where they
    apply; sweep 0 is the initial proposal.

    Examples:
        >>> len(posterior), posterior[0]["mu"].shape, posterior.weights.shape
        (2, (1, 4), (2, 1, 4))
        >>> mean = np.sum(posterior.weights[0] * posterior[0]["mu"])
    """

    def __init__(self, runner: Runner, parts: Sequence[Part]):
        self._runner = runner
        self._parts = list(parts)
        places = np.concatenate([part.bucket.indices for part in self._parts])
        self._order = np.argsort(places)
        self._rows = [(part, row) for part in self._parts for row in range(len(part.bucket))]

    def __len__(self) -> int:
        return len(self._order)

    def __repr__(self) -> str:
        blocks = " ".join(f"[{label}]" for label in self.blocks)
        padding = f", padded by {self.padding:.0%}" if self.padding else ""
        return (
            f"Posterior({len(self)} instances × {self.num_populations} populations × {self.num_particles} particles, "
            f"{self.num_sweeps} sweeps, blocks {blocks}{padding})"
        )

    def __getitem__(self, instance: int) -> dict[str, np.ndarray]:
        part, row = self._row(instance)
        mask = {plate: values[row] for plate, values in part.bucket.data.mask.items()}
        samples = {}
        for site in self._runner.sampler.sites:
            if site.observed:
                continue
            array = np.asarray(part.population.particles.latents[site.name][row])
            for plate, axis in site.plates:
                if plate in mask:
                    array = unpad(array, array.ndim - site.event_dim + axis, mask[plate])
            samples[site.name] = array
        return samples

    def _row(self, instance: int) -> tuple[Part, int]:
        if not -len(self) <= instance < len(self):
            raise IndexError(f"instance {instance} of {len(self)}")
        return self._rows[self._order[instance]]

    def _gather(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays)[self._order]

    def _population(self, name: str) -> np.ndarray:
        return self._gather([np.asarray(getattr(part.population, name)) for part in self._parts])

    def _info(self, name: str) -> np.ndarray:
        return self._gather([np.moveaxis(np.asarray(getattr(part.info, name)), 0, 2) for part in self._parts])

    @property
    def blocks(self) -> list[str]:
        """The names of the blocks, in the order of a sweep."""
        return [block.name for block in self._runner.sampler.blocks]

    @property
    def num_particles(self) -> int:
        """Particles per population."""
        return self._runner.num_particles

    @property
    def num_populations(self) -> int:
        """Independent populations per instance."""
        return self._runner.num_populations

    @property
    def padding(self) -> float:
        """Elements that padding added, as a fraction of the real ones; `APG(sizes=...)` chooses other sizes."""
        buckets = [part.bucket for part in self._parts]
        return sum(bucket.num_padded for bucket in buckets) / sum(bucket.num_real for bucket in buckets) - 1

    @property
    def num_sweeps(self) -> int:
        """Sweeps so far, without the initial proposal; the paper's K is one more."""
        return self._parts[0].info.mean_log_joint.shape[0] - 1

    @property
    def weights(self) -> np.ndarray:
        """Normalised weights w̄ with axes (instance, population, particle); each population sums to one.

        All are zero where no particle has weight.
        """
        log_weights = self._population("log_weights")
        return np.moveaxis(np.asarray(normalise(jnp.moveaxis(log_weights, -1, 0))), 0, -1)

    @property
    def log_joint(self) -> np.ndarray:
        """log p(x, z) of every particle, with axes (instance, population, particle)."""

        def of_part(part: Part) -> np.ndarray:
            factors = part.population.particles.log_probs.values()
            return sum(np.sum(f, axis=tuple(range(3, np.ndim(f)))) for f in factors)  # pyright: ignore[reportReturnType]

        return self._gather([of_part(part) for part in self._parts])

    @property
    def mean_log_joint(self) -> np.ndarray:
        """Σ_l w̄_l log p(x, z_l) after each sweep, before resampling, with axes (instance, population, sweep)."""
        return self._info("mean_log_joint")

    @property
    def log_evidence(self) -> np.ndarray:
        """Estimate of log p(x) with axis (instance,): the log of the mean evidence over populations.

        The evidence of a population is the product, over resamplings, of the mean weight. It is unbiased for p(x).

        Examples:
            >>> posterior.log_evidence.shape
            (2,)
        """
        return combined_log_evidence(self.log_evidence_by_sweep[..., -1])

    @property
    def log_evidence_error(self) -> np.ndarray:
        """Standard error of `log_evidence` with axis (instance,), from the spread over populations.

        NaN for a single population.
        """
        return log_evidence_error(self.log_evidence_by_sweep[..., -1])

    @property
    def log_evidence_by_sweep(self) -> np.ndarray:
        """Log evidence of each population after each sweep, with axes (instance, population, sweep)."""
        return self._info("log_evidence")

    @property
    def ess(self) -> np.ndarray:
        """Effective sample size (Σw)² / Σw² after each block, with axes (instance, population, sweep, block).

        It measures the block's proposal, not the posterior: good conditionals keep it high even in a wrong mode.

        Examples:
            >>> posterior.ess.shape
            (2, 1, 3, 1)
        """
        return self._info("ess")

    @property
    def acceptance(self) -> np.ndarray:
        """Fraction of proposals accepted, with axes (instance, population, sweep, block); 1 under `Reweight`."""
        return self._info("acceptance")

    @property
    def num_ancestors(self) -> np.ndarray:
        """Number of initial particles that still have descendants, with axes (instance, population, sweep)."""
        return self._info("num_ancestors")

    @property
    def degenerate(self) -> np.ndarray:
        """Whether the weights of an instance were ever all zero or NaN, with axis (instance,).

        Do not trust the samples of such an instance.
        """
        return np.any(self._population("degenerate"), axis=1)

    @property
    def impossible(self) -> np.ndarray:
        """Whether `Reweight` took a proposal of weight zero, with axes (instance, population, sweep, block).

        The proposal is then impossible under the model, or cannot be reversed, so E[v] < 1: the evidence is too low and
        the samples are biased. Use `Metropolis()` for the block.
        """
        return self._info("impossible")

    @property
    def biased_blocks(self) -> list[str]:
        """Names of the blocks with a proposal that was `impossible`."""
        return [label for i, label in enumerate(self.blocks) if self.impossible[..., i].any()]

    def warn(self) -> None:
        """Warn about biased blocks and degenerate instances; `APG.sample` and `extend` call this.

        Examples:
            >>> posterior.warn()
        """
        for label in self.biased_blocks:
            warnings.warn(
                f"block '{label}': a weighed proposal had probability zero under the model, or could not have been "
                "reversed, so evidence and samples are biased; use move=Metropolis() for this block",
                stacklevel=3,
            )
        if failed := np.flatnonzero(self.degenerate).tolist():
            finite = self._info("finite")[failed[0], :, 0]
            sites = [site.name for i, site in enumerate(self._runner.sampler.sites) if not finite[:, i].any()]
            cause = (
                f"no first draw had a finite log-probability of '{sites[0]}'"
                if sites
                else "no particle had weight left, or a weight was not a number"
            )
            warnings.warn(
                f"weights failed on {len(failed)} of {len(self)} instances, which are flagged in `degenerate` and must "
                f"not be trusted; at instance {failed[0]} {cause}",
                stacklevel=3,
            )

    @property
    def weak_blocks(self) -> list[str]:
        """Names of the blocks whose mean effective sample size in the last sweep is below 30% of the particles.

        Each name is followed by its percentage.
        """
        return weak_blocks(self.ess, self.blocks, self.num_particles)

    def extend(self, key: KeyLike, num_sweeps: int) -> "Posterior":
        """Run more sweeps of the same populations.

        Args:
            key: A random key. With the key of the first run, the result is that of a longer run, up to rounding.
            num_sweeps: The number of additional sweeps.

        Returns:
            The posterior after all sweeps, with the diagnostics of all of them.

        Examples:
            >>> posterior.extend(key, num_sweeps=1).num_sweeps
            3
        """
        key, num_sweeps = as_key(key), whole_number("num_sweeps", num_sweeps, 1)
        parts = []
        for part in self._parts:
            population, info = self._runner.run(
                key, part.bucket, num_sweeps, after=part.population, first_sweep=self.num_sweeps + 1
            )
            joined = jax.tree.map(lambda a, b: np.concatenate([a, b]), part.info, info)
            parts.append(Part(part.bucket, population, joined))
        extended = Posterior(self._runner, parts)
        extended.warn()
        return extended

    def resampled(self, key: KeyLike) -> "Posterior":
        """The posterior with equal weights: each population is resampled once and put into random order.

        Args:
            key: A random key.

        Returns:
            A posterior in which every particle, taken alone, is a draw in proportion to the weights.

        Examples:
            >>> posterior.resampled(key).weights[0]
            array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
        """
        key = as_key(key)
        parts = []
        for part in self._parts:
            shape = part.population.log_evidence.shape
            keys = jax.vmap(lambda i: jax.random.split(fold_in(key, i), shape[1]))(part.bucket.indices)  # noqa: B023
            population = jax.device_get(_resample(keys, part.population))
            parts.append(Part(part.bucket, population, part.info))
        return Posterior(self._runner, parts)

    def relabelled(self) -> "Posterior":
        """The posterior with one labelling of exchangeable components for all particles of an instance.

        Particles may number the clusters of a mixture differently, and then a mean over particles mixes clusters. Each
        particle is renamed to be as close as possible to the mean of the others ([how](../explanation/labels.md)); its
        log joint stays the same. Places are in the order of the components' first number. `summary` and `to_arviz` use
        this; `posterior[i]` has the labels as they were drawn.

        Returns:
            The renamed posterior, or this one if the model has no exchangeable components.

        Examples:
            >>> posterior.relabelled() is posterior  # one mean, no components
            True
        """
        return self._relabelled if self._runner.sampler.exchangeable else self

    @computed_once
    def _relabelled(self) -> "Posterior":
        components = self._runner.sampler.exchangeable
        sites, joint, weights = self._runner.sampler.sites, self.log_joint, self.weights
        parts = []
        for part in self._parts:
            population, rows = part.population, part.bucket.indices
            for each in components:
                population = relabelled(population, each, sites, weights[rows], joint[rows])
            parts.append(Part(part.bucket, population, part.info))
        return Posterior(self._runner, parts)

    def summary(self, instance: int | None = None, *, relabel: bool = True) -> "pandas.DataFrame":
        """Weighted mean, standard deviation and quantiles of every latent number.

        Discrete sites have their most probable value and its probability instead. Exchangeable components are
        `relabelled` first.

        Args:
            instance: The instance to summarise; by default all.
            relabel: Whether to rename exchangeable components; if not, labels are as they were drawn.

        Returns:
            A data frame with one row per latent number, indexed by instance and site.

        Examples:
            >>> list(posterior.summary(0).columns)
            ['mean', 'sd', 'q5', 'median', 'q95']
        """
        import pandas as pd  # here, because it is slow to import

        if relabel and self._runner.sampler.exchangeable:
            return self.relabelled().summary(instance, relabel=False)
        chosen = range(len(self)) if instance is None else [instance]
        weights = self.weights
        rows = []
        for i in chosen:
            flat_weights = weights[i].reshape(-1)
            if not flat_weights.any():  # where weights failed, all particles count alike
                flat_weights = np.ones_like(flat_weights)
            flat_weights = flat_weights / flat_weights.sum()
            for name, samples in self[i].items():
                flat = samples.reshape(flat_weights.shape[0], -1)
                table = _rows(flat, flat_weights)
                labels = [f"{name}{list(k) if k else ''}" for k in np.ndindex(samples.shape[2:])]
                rows += [{"instance": i, "site": label, **row} for label, row in zip(labels, table, strict=True)]
        return pd.DataFrame(rows).set_index(["instance", "site"])

    def to_arviz(self, key: KeyLike | None = None, *, relabel: bool = True) -> Any:
        """The resampled draws as ArviZ `InferenceData`, with dimensions (chain, draw, instance, ...).

        A chain is a population and a draw is a particle. Sites whose sizes differ between instances are padded with NaN,
        or with −1 if they are discrete; `constant_data` holds the sizes of declared plates and the log evidence.

        Args:
            key: A random key for `resampled`; by default `jax.random.key(0)`.
            relabel: Whether to rename exchangeable components as `relabelled` does.

        Returns:
            An `arviz.InferenceData` with the groups `posterior`, `sample_stats` and `constant_data`.

        Examples:
            >>> dict(posterior.to_arviz().posterior["mu"].sizes)
            {'chain': 1, 'draw': 4, 'instance': 2}
        """
        with warnings.catch_warnings():  # ArviZ announces its next major version once per day
            warnings.simplefilter("ignore", FutureWarning)
            import arviz as az

        labelled = self.relabelled() if relabel else self
        equal = labelled.resampled(jax.random.key(0) if key is None else key)
        sites = [site for site in self._runner.sampler.sites if not site.observed]
        each = [equal[i] for i in range(len(self))]
        draws = {
            site.name: np.moveaxis(_stack_ragged([samples[site.name] for samples in each], site.discrete), 0, 2)
            for site in sites
        }
        statistics = {"lp": np.moveaxis(equal.log_joint, 0, 2)}
        last = {
            "log_evidence": self.log_evidence,
            "log_evidence_error": self.log_evidence_error,
            "degenerate": self.degenerate,
            **{f"size_{plate}": size for plate, size in self._plate_sizes().items()},
        }
        dims = {name: ["instance"] for name in (*draws, *statistics, *last)}
        coords = {"instance": np.arange(len(self))}
        for name, array in draws.items():
            dims[name] = ["instance", *(f"{name}_dim_{i}" for i in range(array.ndim - 3))]
        with warnings.catch_warnings():  # ArviZ expects more draws than chains; populations may outnumber particles
            warnings.filterwarnings("ignore", "More chains", UserWarning)
            return az.from_dict(posterior=draws, sample_stats=statistics, constant_data=last, coords=coords, dims=dims)

    def _plate_sizes(self) -> dict[str, np.ndarray]:
        declared = self._parts[0].bucket.data.mask
        return {
            plate: self._gather([part.bucket.data.mask[plate].sum(axis=1) for part in self._parts]) for plate in declared
        }


@jax.jit
@jax.vmap
@jax.vmap
def _resample(key: PRNGKey, population: Population) -> Population:
    population = population.resample(key, systematic, below=2.0)  # always, also if weights differ by rounding only
    # Systematic resampling keeps the order, so the first place would nearly always go to one of the first particles.
    order = jax.random.permutation(fold_in(key, 1), population.ancestors.shape[0])
    particles, log_weights, ancestors = jax.tree.map(
        lambda leaf: leaf[order], (population.particles, population.log_weights, population.ancestors)
    )
    return replace(population, particles=particles, log_weights=log_weights, ancestors=ancestors)


def _rows(samples: np.ndarray, weights: np.ndarray) -> list[dict[str, float]]:
    if samples.dtype.kind in "iub":
        return [_discrete_row(column, weights) for column in samples.T]
    return [_continuous_row(column, weights) for column in samples.T]


def _continuous_row(column: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    mean = float(np.sum(weights * column))
    order = np.argsort(column)
    middle = np.cumsum(weights[order]) - weights[order] / 2
    low, median, high = np.interp([0.05, 0.5, 0.95], middle, column[order])
    deviation = float(np.sqrt(np.sum(weights * (column - mean) ** 2)))
    return {"mean": mean, "sd": deviation, "q5": float(low), "median": float(median), "q95": float(high)}


def _discrete_row(column: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    values, places = np.unique(column, return_inverse=True)
    probabilities = np.bincount(places, weights=weights)
    return {"mode": float(values[probabilities.argmax()]), "probability": float(probabilities.max())}


def _stack_ragged(arrays: Sequence[np.ndarray], discrete: bool) -> np.ndarray:
    shape = np.max([array.shape for array in arrays], axis=0)
    filler = -1 if discrete else np.nan
    stacked = np.full((len(arrays), *shape), filler, dtype=arrays[0].dtype)
    for i, array in enumerate(arrays):
        stacked[(i, *(slice(size) for size in array.shape))] = array
    return stacked
