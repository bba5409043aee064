"""Sequences: proper weights at every step against Kalman smoothing and forward-backward, padding, cost, errors."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import popgibbs as pg
from oracles import (
    FIRST_STATE,
    LEAK,
    NEXT_STATE,
    NOISE_SCALE,
    PULL,
    SHIFTED,
    STEP_SCALE,
    assert_mean,
    markov_posterior,
    walk_posterior,
)
from popgibbs.data import Data, complete
from popgibbs.smc import initialise, normalise, run, update
from popgibbs.training import accumulate

pytestmark = pytest.mark.usefixtures("quick_compilation")

X = np.array([0.4, 1.3, -0.2, 0.9], np.float32)
NUM_RUNS = 20_000


class Walk(pg.StateSpaceModel):
    state, observed = "z", "x"

    def globals(self):
        return numpyro.sample("g", dist.Normal(0.0, 1.0))

    def initial(self, globals):
        return dist.Normal(globals, 1.0)

    def transition(self, previous, globals):
        return dist.Normal(PULL * previous + globals, STEP_SCALE)

    def emission(self, state, globals):
        return dist.Normal(state + LEAK * globals, NOISE_SCALE)


class Drift(eqx.Module):
    """Close to p(g | z, x): off by a shift and a stretch; the first draw is close to the prior."""

    def __call__(self, data, latents, model):
        z, real = latents["z"], data.mask["time"]
        steps, leaks = z[1:] - PULL * z[:-1], data["x"] - z
        precision = 1.0 + 1.0 + jnp.sum(real[1:]) / STEP_SCALE**2 + jnp.sum(real) * (LEAK / NOISE_SCALE) ** 2
        pull = z[0] + jnp.sum(jnp.where(real[1:], steps, 0.0)) / STEP_SCALE**2
        pull += LEAK * jnp.sum(jnp.where(real, leaks, 0.0)) / NOISE_SCALE**2
        numpyro.sample("g", dist.Normal(pull / precision + 0.2 * precision**-0.5, 1.1 * precision**-0.5))

    def initial(self, data, latents, model):
        numpyro.sample("g", dist.Normal(0.2, 1.1))


def state_given_neighbours(data, previous, following, g) -> tuple[Any, Any]:
    """The exact p(z_t | z_{t-1}, z_{t+1}, x_t, g) as location and scale."""
    before = jnp.where(previous.exists, STEP_SCALE**-2, 1.0)
    loc = jnp.where(previous.exists, PULL * previous.value + g, g)
    after = jnp.where(following.exists, PULL**2 * STEP_SCALE**-2, 0.0)
    seen = NOISE_SCALE**-2
    precision = before + after + seen
    pull = before * loc + seen * (data["x"] - LEAK * g)
    pull += jnp.where(following.exists, PULL * STEP_SCALE**-2 * (following.value - g), 0.0)
    return pull / precision, precision**-0.5


class Positions(eqx.Module):
    """The exact conditional of a state up to a learned shift and stretch; the first draw sees only two steps back."""

    shift: Any = eqx.field(default_factory=lambda: jnp.float32(0.3))
    stretch: Any = eqx.field(default_factory=lambda: jnp.float32(1.1))

    def __call__(self, data, t, previous, following, globals, model):
        loc, scale = state_given_neighbours(data, previous, following, globals)
        numpyro.sample("z", dist.Normal(loc + self.shift * scale, self.stretch * scale))

    def initial(self, data, t, previous, globals, model):
        nothing = previous._replace(exists=jnp.zeros((), bool))
        loc, scale = state_given_neighbours(data, previous, nothing, globals)
        motion = jnp.where(previous.before.exists, previous.value - previous.before.value, -1.0)
        numpyro.sample("z", dist.Normal(loc + 0.2 * motion * scale, 1.1 * scale))


def walk_sampler(move: Any = None, positions: Any = None, **options: Any) -> pg.APG:
    blocks = [pg.Block("g", proposal=Drift()), pg.SequenceBlock("z", proposal=positions or Positions(), move=move)]
    return pg.APG(Walk(), data={"x": "time"}, blocks=blocks, **options)


def assert_unbiased(log_estimates, log_evidence: float) -> np.ndarray:
    ratios = np.exp(np.asarray(log_estimates, np.float64) - log_evidence)
    deviation = ratios.std(axis=1)
    assert np.all((deviation > 0.05) & (deviation / np.sqrt(ratios.shape[1]) < 0.02)), deviation
    assert_mean(ratios.T, 1.0)
    return ratios


@pytest.mark.parametrize(
    ("move", "below"), [(None, 1.0), (None, 0.7), (pg.Metropolis(), 1.0)], ids=["weigh", "weigh below 0.7", "metropolis"]
)
def test_evidence_and_moments_of_a_linear_gaussian_walk_are_those_of_kalman_smoothing(every_block, move, below):
    apg = walk_sampler(move, ess_threshold=below)

    def report(population):
        weights, z = normalise(population.log_weights), population.particles.latents["z"]
        g = population.particles.latents["g"]
        return population.total_log_evidence, jnp.concatenate([weights @ z, weights @ z**2, (weights @ (z * g[:, None]))])

    log_estimates, means = every_block(apg, {"x": X}, report, num_runs=NUM_RUNS, num_sweeps=2, num_particles=4)
    exact = walk_posterior(X)
    ratios = assert_unbiased(log_estimates, exact.log_evidence)
    mean_g, mean_z = exact.mean[:, 0], exact.mean[:, 1]
    moments = [mean_z, exact.covariance[:, 1, 1] + mean_z**2, exact.covariance[:, 0, 1] + mean_g * mean_z]
    for step in range(len(ratios)):
        assert_mean(ratios[step, :, None] * means[step], np.concatenate(moments))


class Markov(pg.StateSpaceModel):
    state, observed = "z", "x"

    def globals(self):
        return numpyro.sample("s", dist.Bernoulli(SHIFTED))

    def initial(self, globals):
        return dist.Categorical(jnp.asarray(FIRST_STATE))

    def transition(self, previous, globals):
        return dist.Categorical(jnp.asarray(NEXT_STATE)[previous])

    def emission(self, state, globals):
        return dist.Normal(state + globals, 0.8)


def flat_state(data, t, previous, following, globals, model):
    """The exact conditional, flattened."""
    before = jnp.where(
        previous.exists, jnp.log(jnp.asarray(NEXT_STATE))[previous.value], jnp.log(jnp.asarray(FIRST_STATE))
    )
    after = jnp.where(following.exists, jnp.log(jnp.asarray(NEXT_STATE))[:, following.value], 0.0)
    seen = dist.Normal(jnp.arange(3) + globals, 0.8).log_prob(data["x"])
    numpyro.sample("z", dist.Categorical(logits=0.7 * (before + after + seen)))


@pytest.mark.parametrize("states", [flat_state, pg.Enumerated()], ids=["near", "enumerated"])
def test_evidence_and_states_of_a_hidden_markov_model_are_those_of_forward_backward(every_block, states):
    blocks = [pg.Block("s", proposal=pg.Enumerated()), pg.SequenceBlock("z", proposal=states)]
    apg = pg.APG(Markov(), data={"x": "time"}, blocks=blocks)

    def report(population):
        z = population.particles.latents["z"][..., None] == jnp.arange(3)
        return population.total_log_evidence, jnp.einsum("l,ltk->tk", normalise(population.log_weights), z)

    log_estimates, shares = every_block(apg, {"x": X}, report, num_runs=NUM_RUNS, num_sweeps=2, num_particles=5)
    log_evidence, exact = markov_posterior(X)
    ratios = assert_unbiased(log_estimates, log_evidence)
    for step in range(len(ratios)):
        assert_mean(ratios[step, :, None, None] * shares[step], exact)


def test_ordinary_blocks_work_on_a_sequence_as_a_whole(every_block):
    def positions(data, latents, model):
        numpyro.sample("z", dist.Normal(0.6 * data["x"] + 0.2, 1.0))

    blocks = [pg.Block("g", proposal=Drift()), pg.Block("z", proposal=positions, move=pg.Metropolis())]
    with pytest.warns(UserWarning, match="not independent"):
        apg = pg.APG(Walk(), data={"x": "time"}, blocks=blocks, example={"x": X})
    estimates = every_block(
        apg, {"x": X[:2]}, lambda p: p.total_log_evidence, num_runs=NUM_RUNS, num_sweeps=2, num_particles=6
    )
    assert_unbiased(estimates, walk_posterior(X[:2]).log_evidence)


def test_the_score_of_a_first_draw_is_its_log_density():
    apg = walk_sampler(example={"x": X})
    data, drawn = complete({"x": jnp.asarray(X)}, apg.axes), {"g": jnp.float32(0.5)}
    block, context, key = apg.built.blocks[1], apg.built.context(1, data), jax.random.key(3)
    values, log_q = block.draw_first(key, context, ("z",), drawn)
    np.testing.assert_allclose(block.score_first(key, context, ("z",), drawn, values), log_q, rtol=1e-5)


def test_padded_steps_change_nothing():
    apg = walk_sampler(example={"x": X})
    exact = complete({"x": X[:3]}, apg.axes)
    padded = Data({"x": jnp.array([*X[:3], *[X[2]] * 3])}, {"time": jnp.arange(6) < 3})
    keys = jax.random.split(jax.random.key(0), 2)

    def sample(data: Data) -> Any:
        batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), data)
        (gradient, info), (population, _, _) = jax.jit(
            lambda: (
                accumulate(apg.built, keys, batch, num_sweeps=2, num_particles=5),
                run(apg.built, keys, batch, num_sweeps=2, num_particles=5),
            )
        )()
        return (
            population.particles.latents["z"][..., :3],
            population.log_weights,
            info,
            gradient.loss,
            gradient.ess_fraction,
        )

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), sample(padded), sample(exact))


def test_samples_of_sequences_have_the_lengths_of_their_instances():
    instances = [{"x": X}, {"x": X[:2]}]
    posterior = walk_sampler().sample(jax.random.key(0), instances, num_sweeps=1, num_particles=3)
    assert [posterior[i]["z"].shape for i in range(2)] == [(1, 3, 4), (1, 3, 2)]
    assert np.all(np.isfinite(posterior.log_evidence))


def test_cached_factors_are_those_of_the_states(every_block):
    apg = walk_sampler()
    target = apg.check({"x": X}).target(complete({"x": X}, apg.axes))

    def report(population):
        fresh = jax.vmap(target.log_probs)(population.particles.latents)
        return population.particles.log_probs, fresh

    cached, fresh = every_block(apg, {"x": X}, report, num_runs=20, num_sweeps=3, num_particles=4)
    for name, values in cached.items():
        np.testing.assert_allclose(values, fresh[name], rtol=1e-4, atol=1e-4)


def test_the_gradient_of_a_sequence_vanishes_at_the_exact_conditional_and_points_towards_it_elsewhere():
    """With many particles, −Σ w̄ ∇ log q estimates the gradient of KL(p ‖ q): shift/stretch² and (1 − s⁻²(1 + δ²))/s."""

    apg = walk_sampler(example={"x": X})
    batch = jax.vmap(lambda x: complete({"x": x}, apg.axes))(jnp.broadcast_to(X, (1, 4)))
    keys = jax.random.split(jax.random.key(1), 100)

    def learned(sampler: Any) -> Any:
        return sampler.blocks[1].kernel.program.shift, sampler.blocks[1].kernel.program.stretch

    @jax.jit
    def gradient(shift: float, stretch: float) -> jax.Array:
        sampler = eqx.tree_at(learned, apg.built, (jnp.float32(shift), jnp.float32(stretch)))

        def one(key):
            arrays = accumulate(sampler, key[None], batch, num_sweeps=1, num_particles=60)[0].arrays
            return jnp.stack(learned(arrays))

        return jax.lax.map(one, keys)

    assert_mean(gradient(0.0, 1.0), 0.0)
    off = np.asarray(gradient(0.3, 1.1))
    # Four steps, each with its own conditional; self-normalised weights of sixty particles are biased by a few percent.
    expected = 4 * np.array([0.3 / 1.1**2, 1 / 1.1 - (1 + 0.3**2) / 1.1**3])
    error = off.std(axis=0) / 10
    assert np.all(np.abs(off.mean(axis=0) - expected) < 5 * error + 0.1 * np.abs(expected))


class Scaled(Walk):
    """A walk whose transitions and emissions are learned."""

    pull: jax.Array
    leak: jax.Array

    def transition(self, previous, globals):
        return dist.Normal(self.pull * previous + globals, STEP_SCALE)

    def emission(self, state, globals):
        return dist.Normal(state + self.leak * globals, NOISE_SCALE)


def test_the_models_gradient_is_that_of_the_evidence():
    """∇θ log p(x) = E[∇θ log p(x, z) | x], compared to finite differences of the Kalman filter."""
    model = Scaled(jnp.float32(PULL), jnp.float32(LEAK))
    blocks = [pg.Block("g", proposal=Drift()), pg.SequenceBlock("z", proposal=Positions())]
    apg = pg.APG(model, data={"x": "time"}, blocks=blocks, example={"x": X})
    batch = jax.vmap(lambda x: complete({"x": x}, apg.axes))(jnp.broadcast_to(X, (1, 4)))
    keys = jax.random.split(jax.random.key(1), 100)

    def one(key):
        arrays = accumulate(apg.built, key[None], batch, num_sweeps=1, num_particles=400)[0].arrays
        return jnp.stack([arrays.model.pull, arrays.model.leak])

    # The gradient is the sum over the initial step and two blocks.
    samples = -np.asarray(jax.jit(lambda: jax.lax.map(one, keys))()) / 3
    expected = []
    for name in ("PULL", "LEAK"):
        with pytest.MonkeyPatch.context() as patch:
            values = []
            for change in (-1e-3, 1e-3):
                import oracles

                patch.setattr(oracles, name, {"PULL": PULL, "LEAK": LEAK}[name] + change)
                values.append(walk_posterior(X).log_evidence)
            expected.append((values[1] - values[0]) / 2e-3)
    error = samples.std(axis=0) / 10
    assert np.all(np.abs(samples.mean(axis=0) - expected) < 5 * error + 0.02)


def test_parts_drawn_one_after_another_have_the_density_of_the_whole():
    """z_1 ~ N(0, 1), z_2 | z_1 ~ N(z_1, 1), z_3 ~ N(z_1 + z_2, 1): jointly normal."""
    successive = pg.Autoregressive(lambda drawn: dist.Normal(sum(drawn, start=jnp.zeros(())), 1.0), 3)
    root = np.array([[1.0, 0, 0], [1, 1, 0], [2, 1, 1]])
    exact = dist.MultivariateNormal(jnp.zeros(3), scale_tril=jnp.asarray(root))
    draws = jax.vmap(successive.sample)(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_allclose(jax.vmap(successive.log_prob)(draws[:20]), exact.log_prob(draws[:20]), rtol=1e-5)
    assert_mean(draws[:, :, None] * draws[:, None, :], root @ root.T)


# Cost -------------------------------------------------------------------------------------------------------------------


def compiled_update(num_steps: int) -> Any:
    apg = walk_sampler(example={"x": X})
    data = complete({"x": np.zeros(num_steps, np.float32)}, apg.axes)
    population = jax.eval_shape(lambda key: initialise(key, apg.built, data, 4)[0], jax.random.key(0))
    step = jax.jit(lambda key, data, population: update(key, apg.built, 1, data, population)[0])
    return step.lower(jax.random.key(0), data, population)


def test_the_program_of_a_sequence_does_not_grow_with_its_length_and_its_memory_grows_linearly():
    short, long = compiled_update(16), compiled_update(64)
    assert len(long.as_text().splitlines()) == len(short.as_text().splitlines())
    sizes = [lowered.compile().memory_analysis().temp_size_in_bytes for lowered in (short, long)]
    assert sizes[1] < 4.5 * sizes[0]


# Errors -----------------------------------------------------------------------------------------------------------------


def build(proposal: Any, *, model: Any = None, site: str = "z") -> pg.APG:
    blocks = [pg.Block("g", proposal=Drift()), pg.SequenceBlock(site, proposal=proposal)]
    return pg.APG(model or Walk(), data={"x": "time"}, blocks=blocks, example={"x": X})


def test_a_sequence_block_needs_a_state_space_model():
    def plain(x):
        g = numpyro.sample("g", dist.Normal(0.0, 1.0))
        with numpyro.plate("time", x.shape[0]):
            z = numpyro.sample("z", dist.Normal(g, 1.0))
            numpyro.sample("x", dist.Normal(z, 1.0), obs=x)

    with pytest.raises(ValueError, match=r"SequenceBlock\('z'\).*StateSpaceModel"):
        build(Positions(), model=plain)


def test_a_sequence_block_names_the_models_state():
    with pytest.raises(ValueError, match=r"'g'.*its state is 'z'"):
        pg.APG(
            Walk(),
            data={"x": "time"},
            blocks=[pg.SequenceBlock("g", proposal=Positions()), pg.SequenceBlock("z", proposal=Positions())],
            example={"x": X},
        )


def test_a_proposal_of_a_step_draws_one_state_of_the_models_shape():
    def twice(data, t, previous, following, globals, model):
        numpyro.sample("z", dist.Normal(jnp.zeros(2), 1.0).to_event(1))

    with pytest.raises(ValueError, match=r"block 'z'.*shape \(2,\).*one step of the model has shape \(\)"):
        build(twice)


def test_a_proposal_of_a_step_must_sample_its_site():
    def other(data, t, previous, following, globals, model):
        numpyro.sample("y", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match=r"block 'z'.*does not sample the sites \['z'\]"):
        build(other)


def test_a_proposal_of_a_step_has_the_support_of_the_state():
    def positive(data, t, previous, following, globals, model):
        numpyro.sample("z", dist.LogNormal(0.0, 1.0))

    with pytest.raises(ValueError, match="support is too narrow"):
        build(positive)


def test_a_prior_draw_of_states_before_the_globals_is_refused():
    blocks = [pg.SequenceBlock("z", proposal=pg.Prior()), pg.Block("g", proposal=Drift())]
    with pytest.raises(ValueError, match=r"block 'z': Prior.*\['g'\]"):
        pg.APG(Walk(), data={"x": "time"}, blocks=blocks, example={"x": X})


class StatesFirst(Positions):
    """A proposal whose first draw does not see the globals."""

    def initial(self, data, t, previous, globals, model):
        assert globals is None
        loc = jnp.where(previous.exists, 0.5 * previous.value + 0.5 * data["x"], 0.8 * data["x"])
        numpyro.sample("z", dist.Normal(loc, 0.9))


class DriftAfter(Drift):
    def initial(self, data, latents, model):
        self(data, latents, model)


def test_globals_may_be_drawn_after_the_states_that_depend_on_them(every_block):
    blocks = [pg.SequenceBlock("z", proposal=StatesFirst()), pg.Block("g", proposal=DriftAfter())]
    apg = pg.APG(Walk(), data={"x": "time"}, blocks=blocks)
    log_estimates = every_block(
        apg, {"x": X[:3]}, lambda p: p.total_log_evidence, num_runs=NUM_RUNS, num_sweeps=1, num_particles=6
    )
    assert_unbiased(log_estimates, walk_posterior(X[:3]).log_evidence)


class Volatility(pg.StateSpaceModel):
    """Positive states; a blank state, zero, has no density and no gradient."""

    state, observed = "z", "x"

    def globals(self):
        return numpyro.sample("g", dist.Normal(0.0, 0.3))

    def initial(self, globals):
        return dist.LogNormal(globals, 0.5)

    def transition(self, previous, globals):
        return dist.LogNormal(jnp.log(previous) + globals, 0.4)

    def emission(self, state, globals):
        return dist.Normal(0.0, state)


def volatility_means(x: np.ndarray) -> np.ndarray:
    """E[log z_t | x] on a grid over g and log z."""
    grid = np.linspace(-3.5, 3.5, 141)
    emitted = [stats.norm(0, np.exp(grid)).pdf(value) for value in x]
    total, means = 0.0, np.zeros(len(x))
    for g in np.linspace(-1.2, 1.2, 41):
        move = stats.norm(grid[:, None] + g, 0.4).pdf(grid)
        move /= move.sum(axis=1, keepdims=True)
        start = stats.norm(g, 0.5).pdf(grid)
        forward = [start / start.sum() * emitted[0]]
        for likelihood in emitted[1:]:
            forward.append((forward[-1] @ move) * likelihood)
        backward = [np.ones_like(grid)]
        for likelihood in emitted[:0:-1]:
            backward.insert(0, move @ (likelihood * backward[0]))
        prior = stats.norm(0, 0.3).pdf(g)
        total += prior * forward[-1].sum()
        means += [prior * np.sum(a * b * grid) for a, b in zip(forward, backward, strict=True)]
    return means / total


def test_hmc_moves_every_step_of_positive_states():
    """This includes the first state, whose previous one is blank, and the last, which has no following one."""
    x = np.array([0.5, -1.0, 2.0], np.float32)
    move = pg.HMC(step_size=0.4, num_steps=4)
    blocks = [
        pg.Block("g", proposal=pg.Prior(), move=pg.Metropolis()),
        pg.SequenceBlock("z", proposal=pg.Prior(), move=move),
    ]
    apg = pg.APG(Volatility(), data={"x": "time"}, blocks=blocks)
    first = apg.sample(jax.random.key(0), [{"x": x}], num_sweeps=0, num_particles=4, num_populations=2000)
    posterior = first.extend(jax.random.key(0), 20)
    assert np.all(np.mean(posterior[0]["z"] != first[0]["z"], axis=(0, 1)) > 0.9)
    # Means of populations are unbiased when weighted by their evidence.
    evidence = np.exp(posterior.log_evidence_by_sweep[0, :, -1] - posterior.log_evidence[0])
    means = np.einsum("rl,rlt->rt", posterior.weights[0], np.log(posterior[0]["z"]))
    assert_mean(evidence[:, None] * (means - volatility_means(x)), 0.0)


class Alone(Walk):
    """States without global variables."""

    def globals(self):
        return None

    def initial(self, globals):
        return dist.Normal(0.0, 1.0)

    def transition(self, previous, globals):
        return dist.Normal(PULL * previous, STEP_SCALE)

    def emission(self, state, globals):
        return dist.Normal(state, NOISE_SCALE)


def test_a_sequence_needs_no_globals():
    apg = pg.APG(Alone(), data={"x": "time"}, blocks=[pg.SequenceBlock("z", proposal=pg.Prior(), move=pg.Metropolis())])
    posterior = apg.sample(jax.random.key(0), [{"x": X}], num_sweeps=2, num_particles=5, num_populations=3000)
    chain = PULL ** np.abs(np.subtract.outer(np.arange(4), np.arange(4)))
    variance = [1.0]
    for _ in range(3):
        variance.append(PULL**2 * variance[-1] + STEP_SCALE**2)
    covariance = chain * np.minimum.outer(np.arange(4), np.arange(4)).choose(variance)
    exact = stats.multivariate_normal(np.zeros(4), covariance + NOISE_SCALE**2 * np.eye(4)).logpdf(X)
    assert_mean(np.exp(posterior.log_evidence_by_sweep[0].astype(np.float64) - exact), 1.0)


class Bounded(Volatility):
    def transition(self, previous, globals):
        return dist.Uniform(0.0, 2 * previous)


@pytest.mark.parametrize("block", [pg.SequenceBlock, pg.Block])
def test_hmc_refuses_states_whose_kind_of_support_changes(block):
    blocks = [
        pg.Block("g", proposal=pg.Prior()),
        block("z", proposal=pg.Prior(), move=pg.HMC(step_size=0.1)),
    ]
    with pytest.raises(ValueError, match="block 'z': HMC needs states whose support is the same at every step"):
        pg.APG(Bounded(), data={"x": "time"}, blocks=blocks, example={"x": X})


def test_a_sequence_of_one_step_is_a_correct_result(every_block):
    apg = walk_sampler(pg.Metropolis(), pg.Prior())
    estimates = every_block(
        apg, {"x": X[:1]}, lambda p: p.total_log_evidence, num_runs=NUM_RUNS, num_sweeps=2, num_particles=3
    )
    assert_unbiased(estimates, walk_posterior(X[:1]).log_evidence)
