"""Small models with closed-form answers, in float64 NumPy, and the tolerance that Monte Carlo error allows."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats
from scipy.special import logsumexp


def assert_mean(samples: Any, exact: Any, num_errors: float = 5.0) -> None:
    """Check that the mean of independent samples (leading axis) is within a few standard errors of the exact one."""
    samples = np.asarray(samples, np.float64)
    mean = samples.mean(axis=0)
    error = samples.std(axis=0, ddof=1) / np.sqrt(samples.shape[0])
    allowed = num_errors * error + 1e-5 * np.abs(exact)
    assert np.all(np.abs(mean - exact) <= allowed), f"mean {mean}, exact {exact}, standard error {error}"


# A chain of normals: a ~ N(0, 1), b | a ~ N(a, 1), x_n | b ~ N(b, 1) --------------------------------------------------


def chain(x):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(a, 1.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(b, 1.0), obs=x)


def chain_log_evidence(x: np.ndarray) -> float:
    """x is normal with covariance I + 2·11ᵀ."""
    covariance = np.eye(len(x)) + 2.0
    return float(stats.multivariate_normal(np.zeros(len(x)), covariance).logpdf(x))


def chain_posterior(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean and covariance of (a, b) given x."""
    precision = np.array([[2.0, -1.0], [-1.0, 1.0 + len(x)]])
    covariance = np.linalg.inv(precision)
    return covariance @ np.array([0.0, np.sum(x)]), covariance


def given_b(b: Any) -> tuple[Any, Any]:
    """Location and scale of a given b."""
    return b / 2, 0.5**0.5


def given_a(a: Any, data: Any) -> tuple[Any, Any]:
    """Location and scale of b given a and x."""
    precision = 1.0 + jnp.sum(data.mask["points"])
    return (a + jnp.sum(jnp.where(data.mask["points"], data["x"], 0.0))) / precision, precision**-0.5


def given_x(data: Any) -> tuple[Any, Any]:
    """Location and scale of a given x."""
    count = jnp.sum(data.mask["points"])
    precision = 1.0 + count / (1.0 + count)
    return jnp.sum(jnp.where(data.mask["points"], data["x"], 0.0)) / (1.0 + count) / precision, precision**-0.5


# A discrete model: a scalar site, and two sites in a plate ------------------------------------------------------------

SWITCH = np.array([0.5, 0.3, 0.2])
GATE = np.array([0.2, 0.5, 0.9])  # probability of g given s
STEP = np.array([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]])  # probabilities of h given g


def switches(x):
    s = numpyro.sample("s", dist.Categorical(jnp.asarray(SWITCH)))
    with numpyro.plate("points", x.shape[0]):
        g = numpyro.sample("g", dist.Bernoulli(jnp.asarray(GATE)[s]))
        h = numpyro.sample("h", dist.Categorical(jnp.asarray(STEP)[g]))
        numpyro.sample("x", dist.Normal(s + 2.0 * g - h, 1.0), obs=x)


def switch_local(s: int, g: int, h: int, x: float) -> float:
    """log p(g, h, x | s) of one point."""
    gate = GATE[s] if g else 1 - GATE[s]
    return float(np.log(gate * STEP[g, h]) + stats.norm(s + 2 * g - h, 1).logpdf(x))


def switch_states(num_points: int) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    yield from product(range(3), product(range(2), repeat=num_points), product(range(3), repeat=num_points))


def switch_log_joint(s: int, g: tuple[int, ...], h: tuple[int, ...], x: np.ndarray) -> float:
    return float(np.log(SWITCH[s])) + sum(switch_local(s, *local) for local in zip(g, h, x, strict=True))


def switch_log_evidence(x: np.ndarray) -> float:
    """log p(x) by enumeration of every state."""
    return float(logsumexp([switch_log_joint(s, g, h, x) for s, g, h in switch_states(len(x))]))


def switch_conditional_of_s(g: tuple[int, ...], h: tuple[int, ...], x: np.ndarray) -> np.ndarray:
    """p(s | g, h, x)."""
    return normalised([switch_log_joint(s, g, h, x) for s in range(3)])


def switch_conditional_of_locals(s: int, x: np.ndarray) -> np.ndarray:
    """p(g_n, h_n | s, x_n), with axes (point, g, h)."""
    return np.stack([normalised([[switch_local(s, g, h, value) for h in range(3)] for g in range(2)]) for value in x])


# A mixture of two normals: μ_k ~ N(0, 4), c_n uniform, x_n ~ N(μ_c, 1) -------------------------------------------------


def pair(x):
    with numpyro.plate("clusters", 2):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with numpyro.plate("points", x.shape[0]):
        c = numpyro.sample("c", dist.Categorical(logits=jnp.zeros(2)))
        numpyro.sample("x", dist.Normal(mu[c], 1.0), obs=x)


class Assigned(NamedTuple):
    """Every assignment of the points, its posterior probability, and the normal posterior of the means given it."""

    c: np.ndarray  # (assignment, point)
    probability: np.ndarray
    loc: np.ndarray  # (assignment, cluster)
    scale: np.ndarray
    log_evidence: float


def pair_posterior(x: np.ndarray) -> Assigned:
    """The posterior by enumeration of the assignments, given which the means are conjugate."""
    c = np.array(list(product(range(2), repeat=len(x))))
    counts = np.stack([np.sum(c == k, axis=1) for k in range(2)], axis=1)
    sums = np.stack([np.sum(np.where(c == k, x, 0.0), axis=1) for k in range(2)], axis=1)
    precision = 0.25 + counts
    log_marginals = []
    for way in c:
        same = way[:, None] == way[None, :]
        covariance = np.eye(len(x)) + 4.0 * same
        log_marginals.append(stats.multivariate_normal(np.zeros(len(x)), covariance).logpdf(x) - len(x) * np.log(2))
    log_evidence = float(logsumexp(log_marginals))
    return Assigned(c, np.exp(np.array(log_marginals) - log_evidence), sums / precision, precision**-0.5, log_evidence)


def pair_draws(generator: np.random.Generator, x: np.ndarray, size: int) -> dict[str, np.ndarray]:
    """Exact posterior draws."""
    exact = pair_posterior(x)
    way = generator.choice(len(exact.probability), size=size, p=exact.probability)
    mu = exact.loc[way] + exact.scale[way] * generator.standard_normal((size, 2))
    return {"mu": mu.astype(np.float32), "c": exact.c[way].astype(np.int32)}


def pair_expectation(x: np.ndarray, function: Callable[[np.ndarray, np.ndarray, np.ndarray], Any]) -> Any:
    """Σ over assignments of their probability times a function of (c, E[μ], E[μ²])."""
    exact = pair_posterior(x)
    return sum(
        probability * np.asarray(function(c, loc, loc**2 + scale**2), np.float64)
        for c, probability, loc, scale in zip(exact.c, exact.probability, exact.loc, exact.scale, strict=True)
    )


# Normal-gamma ---------------------------------------------------------------------------------------------------------


def normal_gamma_posterior(
    loc: float, count: float, concentration: float, rate: float, values: np.ndarray, shares: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The textbook update of (loc, count, concentration, rate), with axes (component, dim), in float64.

    With weights r_n: N = Σr, x̄ = Σrx/N, S = Σr(x − x̄)²; rate' = rate + S/2 + count·N (x̄ − loc)² / (2 (count + N)).
    """
    values, shares = np.asarray(values, np.float64), np.asarray(shares, np.float64)
    total = shares.sum(axis=0)[:, None]
    mean = shares.T @ values / np.where(total > 0, total, 1.0)
    squares = np.einsum("nk,nkd->kd", shares, (values[:, None, :] - mean) ** 2)
    new_count = np.broadcast_to(count + total, mean.shape)
    return (
        (count * loc + total * mean) / new_count,
        new_count,
        np.broadcast_to(concentration + total / 2, mean.shape),
        rate + squares / 2 + count * total / (2 * new_count) * (mean - loc) ** 2,
    )


def normalised(log_density: Any) -> np.ndarray:
    """exp of the log-density, divided by its sum."""
    log_density = np.asarray(log_density, np.float64)
    return np.exp(log_density - logsumexp(log_density))


# A walk with a global drift g: z_1 ~ N(g, 1), z_t ~ N(0.8 z_{t-1} + g, 0.7²), x_t ~ N(z_t − 0.5 g, 0.6²) ----------------

PULL, STEP_SCALE, LEAK, NOISE_SCALE = 0.8, 0.7, -0.5, 0.6


class Smoothed(NamedTuple):
    """Moments of (g, z_t) given all of x, by step."""

    log_evidence: float
    mean: np.ndarray
    covariance: np.ndarray


def walk_posterior(x: np.ndarray) -> Smoothed:
    """The Kalman filter and the Rauch-Tung-Striebel smoother on the state (g, z_t)."""
    move = np.array([[1.0, 0.0], [1.0, PULL]])
    noise = np.diag([0.0, STEP_SCALE**2])
    look = np.array([LEAK, 1.0])
    mean, covariance = np.zeros(2), np.array([[1.0, 1.0], [1.0, 2.0]])
    predicted, filtered, log_evidence = [], [], 0.0
    for observed in np.asarray(x, np.float64):
        predicted.append((mean, covariance))
        spread = look @ covariance @ look + NOISE_SCALE**2
        log_evidence += stats.norm(look @ mean, spread**0.5).logpdf(observed)
        gain = covariance @ look / spread
        filtered.append((mean + gain * (observed - look @ mean), covariance - np.outer(gain, look @ covariance)))
        mean, covariance = move @ filtered[-1][0], move @ filtered[-1][1] @ move.T + noise
    smoothed = [filtered[-1]]
    for (now_mean, now), (next_mean, following) in zip(filtered[-2::-1], predicted[:0:-1], strict=True):
        back = now @ move.T @ np.linalg.pinv(following)
        later_mean, later = smoothed[-1]
        smoothed.append((now_mean + back @ (later_mean - next_mean), now + back @ (later - following) @ back.T))
    means, covariances = zip(*smoothed[::-1], strict=True)
    return Smoothed(float(log_evidence), np.array(means), np.array(covariances))


# A hidden Markov model of three states; a global switch s ∈ {0, 1} shifts their emissions ------------------------------

FIRST_STATE = np.array([0.5, 0.3, 0.2])
NEXT_STATE = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]])
SHIFTED = 0.3  # the probability of s = 1


def markov_posterior(x: np.ndarray) -> tuple[float, np.ndarray]:
    """The log-evidence and p(z_t = k | x) by step, from the forward-backward algorithm for either switch."""
    joints = []
    for switch, prior in enumerate((1 - SHIFTED, SHIFTED)):
        emitted = stats.norm(np.arange(3) + switch, 0.8).pdf(np.asarray(x, np.float64)[:, None])
        forward, backward = [FIRST_STATE * emitted[0]], [np.ones(3)]
        for likelihood in emitted[1:]:
            forward.append(forward[-1] @ NEXT_STATE * likelihood)
        for likelihood in emitted[:0:-1]:
            backward.append(NEXT_STATE @ (likelihood * backward[-1]))
        joints.append(prior * np.array(forward) * np.array(backward[::-1]))
    joint = sum(joints)
    evidence = joint[0].sum()
    return float(np.log(evidence)), joint / evidence


# A hierarchy: μ ~ N(0, 2²), σ ~ HalfNormal(2), α_j ~ N(μ, σ), x_j ~ N(α_j, 1) -----------------------------------------


class Hierarchy(NamedTuple):
    """E[f] and E[f²] of μ, log σ and α given x, and log p(x)."""

    mu: np.ndarray
    log_sigma: np.ndarray
    alpha: np.ndarray  # (moment, group)
    log_evidence: float


def hierarchy(x):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("groups", x.shape[0]):
        alpha = numpyro.sample("alpha", dist.Normal(mu, sigma))
        numpyro.sample("x", dist.Normal(alpha, 1.0), obs=x)


def hierarchy_posterior(x: np.ndarray) -> Hierarchy:
    """Quadrature over log σ and μ; α is normal given both."""
    x = np.asarray(x, np.float64)
    log_sigma, mu = np.meshgrid(np.linspace(-12, 4, 1601), np.linspace(-10, 10, 801), indexing="ij")
    sigma = np.exp(log_sigma)
    log_joint = stats.norm(0, 2).logpdf(mu) + stats.halfnorm(0, 2).logpdf(sigma) + log_sigma
    log_joint = log_joint + sum(stats.norm(mu, np.hypot(sigma, 1)).logpdf(value) for value in x)
    share = normalised(log_joint)
    pull = sigma**2 / (1 + sigma**2)  # of the datum on its α
    loc = mu[..., None] + pull[..., None] * (x - mu[..., None])
    alpha = [loc, loc**2 + pull[..., None]]
    return Hierarchy(
        mu=np.array([np.sum(share * mu**power) for power in (1, 2)]),
        log_sigma=np.array([np.sum(share * log_sigma**power) for power in (1, 2)]),
        alpha=np.array([np.sum(share[..., None] * moment, axis=(0, 1)) for moment in alpha]),
        log_evidence=float(logsumexp(log_joint) + np.log(0.01 * 0.025)),
    )
