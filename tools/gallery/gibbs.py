"""Long Gibbs chains in NumPy for the mixtures, started at the generating latents: all instances and chains at once.

A chain that starts at the latents of simulated data starts at a draw from the posterior. Chains of one instance differ in
their random numbers only, so their R-hat speaks of their length, not of modes that no chain visits.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpyro.diagnostics import split_gelman_rubin
from tools.gallery.moments import Invariant, Moments, Values

MOST_R_HAT = 1.05
Chains = Callable[[np.random.Generator, Values, Values], Iterator[dict[str, np.ndarray]]]


def run(
    chains: Chains,
    quantities: Invariant,
    instances: Sequence[Values],
    latents: Sequence[Values],
    *,
    seed: int = 0,
    num_chains: int = 4,
    num_steps: int = 3_000,
    num_warmup: int = 200,
) -> Moments:
    """Moments of invariant quantities over the chains of each instance."""
    rng = np.random.default_rng(seed)

    def stacked(rows: Sequence[Values]) -> dict[str, np.ndarray]:
        return {name: np.repeat(np.stack([np.asarray(row[name]) for row in rows]), num_chains, 0) for name in rows[0]}

    steps = chains(rng, stacked(instances), stacked(latents))
    kept: dict[str, list[np.ndarray]] = {}
    for step in range(num_warmup + num_steps):
        state = next(steps)
        if step >= num_warmup:
            for name, draws in quantities(state).items():
                kept.setdefault(name, []).append(draws.astype(np.float32))
    mean, sd, reliable = {}, {}, np.ones(len(instances), bool)
    for name, draws in kept.items():
        series = np.stack(draws, axis=1)  # axes (row, step, number)
        series = series.reshape(len(instances), num_chains, num_steps, -1)
        mean[name] = series.mean(axis=(1, 2), dtype=float)
        sd[name] = series.std(axis=(1, 2), dtype=float)
        worst = [max(split_gelman_rubin(one[..., k]) for k in range(one.shape[-1])) for one in series]
        reliable &= np.asarray(worst) < MOST_R_HAT
    return Moments(mean, sd, reliable=reliable)


def gaussian_mixture(rng: np.random.Generator, data: Values, latents: Values) -> Iterator[dict[str, np.ndarray]]:
    """Normal-gamma components, equal weights."""
    x, c = np.asarray(data["x"], float), latents["c"]
    while True:
        a, b, kappa, centre = normal_gamma(x, np.eye(3)[c])
        tau = rng.gamma(a) / b
        mu = centre + rng.normal(size=centre.shape) / np.sqrt(kappa * tau)
        log_p = 0.5 * np.log(tau)[:, None] - 0.5 * tau[:, None] * (x[:, :, None] - mu[:, None]) ** 2
        c = categorical(rng, log_p.sum(axis=-1))
        yield {"mu": mu, "tau": tau}


def normal_gamma(x: np.ndarray, one_hot: np.ndarray) -> tuple[np.ndarray, ...]:
    """Shape, rate, precision factor and centre of the posterior of each component and coordinate."""
    count = one_hot.sum(axis=1)[..., None]
    total = np.einsum("rnk,rnd->rkd", one_hot, x)
    squares = np.einsum("rnk,rnd->rkd", one_hot, x**2)
    kappa = 0.1 + count
    centre = total / kappa
    return 2 + count / 2, 2 + 0.5 * (squares - kappa * centre**2), kappa, centre


def poisson_mixture(rng: np.random.Generator, data: Values, latents: Values) -> Iterator[dict[str, np.ndarray]]:
    """Gamma rates, Dirichlet weights."""
    y, c = np.asarray(data["y"], float), latents["c"]
    while True:
        one_hot = np.eye(3)[c]
        count = one_hot.sum(axis=1)
        rate = rng.gamma(2 + np.einsum("rnk,rn->rk", one_hot, y)) / (0.2 + count)
        weights = dirichlet(rng, 2 + count)
        log_p = np.log(weights)[:, None] + y[..., None] * np.log(rate)[:, None] - rate[:, None]
        c = categorical(rng, log_p)
        yield {"rate": rate, "weights": weights}


def lda(rng: np.random.Generator, data: Values, latents: Values) -> Iterator[dict[str, np.ndarray]]:
    """Assignments word by word with topics and shares summed out, then draws of both."""
    w, z = np.asarray(data["w"]), np.array(latents["z"])
    rows = np.arange(len(w))
    in_document = np.eye(3)[z].sum(axis=2)  # axes (row, document, topic)
    in_topic = np.einsum("rdnk,rdnv->rkv", np.eye(3)[z], np.eye(12)[w])
    while True:
        for document, place in np.ndindex(*w.shape[1:]):
            word, old = w[:, document, place], z[:, document, place]
            in_document[rows, document, old] -= 1
            in_topic[rows, old, word] -= 1
            p = (0.5 + in_document[:, document]) * (0.5 + in_topic[rows, :, word]) / (6 + in_topic.sum(axis=2))
            p = np.cumsum(p, axis=1)
            new = np.sum(rng.random(len(w))[:, None] * p[:, -1:] > p, axis=1)
            z[:, document, place] = new
            in_document[rows, document, new] += 1
            in_topic[rows, new, word] += 1
        theta, phi = dirichlet(rng, 0.5 + in_document), dirichlet(rng, 0.5 + in_topic)
        yield {"theta": theta[:, :, None], "phi": phi}


def categorical(rng: np.random.Generator, log_p: np.ndarray) -> np.ndarray:
    return np.argmax(log_p + rng.gumbel(size=log_p.shape), axis=-1)


def dirichlet(rng: np.random.Generator, concentration: np.ndarray) -> np.ndarray:
    draws = np.maximum(rng.gamma(concentration), 1e-300)
    return draws / draws.sum(axis=-1, keepdims=True)
