"""Proposals built from the model, and users' programs with internal randomness."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import popgibbs as pg
from models import conditional_at
from oracles import (
    GATE,
    STEP,
    SWITCH,
    assert_mean,
    chain,
    chain_log_evidence,
    given_a,
    given_b,
    given_x,
    normalised,
    pair,
    switch_conditional_of_locals,
    switch_conditional_of_s,
    switch_log_evidence,
    switches,
)
from popgibbs.data import Data, complete
from popgibbs.model import BlockConditional, Conditional, Particle
from popgibbs.moves import MoveKeys, Reweight
from popgibbs.smc import draw_initial, score_initial

pytestmark = pytest.mark.usefixtures("quick_compilation")

X = np.array([0.4, -1.3, 2.0], np.float32)
S = 1
G, H = np.array([0, 1, 1]), np.array([2, 0, 1])
LATENTS = {"s": jnp.asarray(S), "g": jnp.asarray(G), "h": jnp.asarray(H)}
NUM_KEYS = 20_000


@cache
def enumerated() -> pg.APG:
    """Blocks of the scalar site first, then of the two sites of each point jointly."""
    blocks = [pg.Block("s", proposal=pg.Enumerated()), pg.Block("g", "h", proposal=pg.Enumerated())]
    return pg.APG(switches, data={"x": "points"}, blocks=blocks)


def conditional_of(apg: pg.APG, index: int, latents: dict, x: np.ndarray = X) -> Conditional:
    return conditional_at(apg.check({"x": x}), index, complete({"x": x}, apg.axes), latents)


def draws(conditional: Conditional, num: int = NUM_KEYS) -> tuple[dict, np.ndarray, np.ndarray]:
    """Values, their log q, and the log q of the same values scored under the same key."""
    kernel = pg.Enumerated()

    def one(key):
        values, log_q = kernel.bind(key, conditional).draw()
        return values, log_q, kernel.bind(key, conditional).score(values)

    return jax.device_get(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), num)))


def score(conditional: Conditional, **values) -> np.ndarray:
    def log_q(values):
        return pg.Enumerated().bind(jax.random.key(0), conditional).score(values)

    return np.asarray(jax.jit(log_q)({name: jnp.asarray(value) for name, value in values.items()}))


def test_enumeration_of_a_scalar_site_is_its_exact_conditional():
    values, log_q, scored = draws(conditional_of(enumerated(), 0, LATENTS))
    exact = switch_conditional_of_s(tuple(G), tuple(H), X)
    assert values["s"].shape == (NUM_KEYS,)
    np.testing.assert_allclose(np.exp(log_q[:, 0]), exact[values["s"]], rtol=1e-4)
    np.testing.assert_array_equal(log_q, scored)
    assert_mean(values["s"][:, None] == np.arange(3), exact)


def test_enumeration_of_two_sites_in_a_plate_is_their_exact_joint_conditional():
    values, log_q, scored = draws(conditional_of(enumerated(), 1, LATENTS))
    exact = switch_conditional_of_locals(S, X)
    g, h = values["g"], values["h"]
    np.testing.assert_allclose(np.exp(log_q), exact[np.arange(3), g, h], rtol=1e-4)
    np.testing.assert_array_equal(log_q, scored)
    joint = (g[..., None, None] == np.arange(2)[:, None]) & (h[..., None, None] == np.arange(3))
    assert_mean(joint, exact)


def test_enumeration_of_one_site_in_a_plate_is_its_exact_conditional():
    apg = pg.APG(
        pair,
        data={"x": "points"},
        blocks=[pg.Block("mu", proposal=pg.Prior(), assigned_by="c"), pg.Block("c", proposal=pg.Enumerated())],
    )
    mu = np.array([-0.5, 1.0])
    values, log_q, scored = draws(conditional_of(apg, 1, {"mu": jnp.asarray(mu), "c": jnp.zeros(3, int)}))
    exact = np.stack([normalised(stats.norm(mu, 1).logpdf(x)) for x in X])
    np.testing.assert_allclose(np.exp(log_q), exact[np.arange(3), values["c"]], rtol=1e-4)
    np.testing.assert_array_equal(log_q, scored)
    assert_mean(values["c"][..., None] == np.arange(2), exact)


def test_the_first_enumeration_runs_over_the_factors_whose_sites_exist():
    """Before g and h exist, s has its prior; before s exists, h has p(h | g), and g is uniform."""
    sampler = enumerated().check({"x": X})
    target = sampler.target(complete({"x": X}, enumerated().axes))
    s_first = BlockConditional(target, sampler.partitions[0], names=("s",), given={}, initial=True)
    assert s_first.factors == ("s",)
    np.testing.assert_allclose(np.exp(score(s_first, s=S)), [SWITCH[S]], rtol=1e-5)
    locals_first = BlockConditional(target, sampler.partitions[1], names=("g", "h"), given={}, initial=True)
    assert locals_first.factors == ("h",)
    np.testing.assert_allclose(np.exp(score(locals_first, g=G, h=H)), STEP[G, H] / 2, rtol=1e-5)
    after_s = BlockConditional(target, sampler.partitions[1], names=("g", "h"), given={"s": jnp.asarray(S)}, initial=True)
    exact = switch_conditional_of_locals(S, X)[np.arange(3), G, H]
    np.testing.assert_allclose(np.exp(score(after_s, g=G, h=H)), exact, rtol=1e-4)


def test_evidence_is_unbiased_from_a_first_enumeration_on(every_block):
    """Only the first draw, in which s does not see the data, has unequal weights."""

    def report(population):
        return population.total_log_evidence

    estimates = every_block(enumerated(), {"x": X}, report, num_runs=5000, num_sweeps=1, num_particles=2)
    assert_mean(np.exp(np.asarray(estimates, np.float64) - switch_log_evidence(X)).T, 1.0)


@pytest.mark.parametrize("initial", [False, True])
def test_padded_elements_do_not_count_in_the_log_q_of_an_enumeration(initial):
    sampler = enumerated().check({"x": X})
    padded = Data({"x": jnp.asarray([*X, X[-1]])}, {"points": jnp.array([True, True, True, False])})
    given = {"s": jnp.asarray(S)}
    conditional = BlockConditional(
        sampler.target(padded), sampler.partitions[1], names=("g", "h"), given=given, initial=initial
    )
    exact = np.log(switch_conditional_of_locals(S, X)[np.arange(3), G, H])
    np.testing.assert_allclose(score(conditional, g=[*G, 0], h=[*H, 0]), [*exact, 0.0], rtol=1e-4)
    _, log_q, _ = draws(conditional, num=10)
    assert np.all(log_q[:, -1] == 0)


@pytest.mark.parametrize("outer", [-1, -2])
def test_enumeration_in_nested_plates_is_exact_whichever_plate_is_outside(outer):
    shape = (2, 3)
    probabilities = np.array([0.2, 0.3, 0.5])

    def grid(x):
        rows, columns = numpyro.plate("rows", shape[0], dim=-2), numpyro.plate("columns", shape[1], dim=-1)
        first, second = (columns, rows) if outer == -1 else (rows, columns)
        with first, second:
            c = numpyro.sample("c", dist.Categorical(jnp.asarray(probabilities)))
            numpyro.sample("x", dist.Normal(c, 1.0), obs=x)

    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 3
    apg = pg.APG(grid, data={}, blocks=[pg.Block("c", proposal=pg.Enumerated())])
    c = np.arange(x.size).reshape(shape) % 3
    conditional = conditional_of(apg, 0, {"c": jnp.asarray(c)}, x)
    exact = [normalised(np.log(probabilities) + stats.norm(np.arange(3), 1).logpdf(value)) for value in x.ravel()]
    expected = np.log([row[value] for row, value in zip(exact, c.ravel(), strict=True)])
    np.testing.assert_allclose(score(conditional, c=c), expected, rtol=1e-4)
    values, log_q, scored = draws(conditional, num=10)
    assert values["c"].shape == (10, *shape)
    np.testing.assert_allclose(log_q, scored, rtol=1e-6)


# The prior -------------------------------------------------------------------------------------------------------------


def weighed(apg: pg.APG, index: int, latents: dict) -> tuple[dict, np.ndarray]:
    """Proposed values and their log v, by element."""
    sampler = apg.check({"x": X})
    conditional = conditional_of(apg, index, latents)

    def one(key):
        particle = Particle(latents, conditional.target.log_probs(latents))
        bound = sampler.blocks[index].kernel.bind(key, conditional)
        _, log_v, info = Reweight()(MoveKeys(key, key), bound, conditional, particle)
        return info.proposed, log_v

    return jax.device_get(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 50)))


def local_log_likelihood(s, g, h) -> np.ndarray:
    return stats.norm(s + 2.0 * g - h, 1.0).logpdf(X)


@cache
def ancestral() -> pg.APG:
    blocks = [pg.Block("s", proposal=pg.Prior()), pg.Block("g", "h", proposal=pg.Prior())]
    return pg.APG(switches, data={"x": "points"}, blocks=blocks)


def test_the_weight_of_a_prior_draw_contains_only_the_factors_of_children():
    proposed, log_v = weighed(ancestral(), 1, LATENTS)
    exact = [local_log_likelihood(S, g, h) for g, h in zip(proposed["g"], proposed["h"], strict=True)]
    np.testing.assert_allclose(log_v, exact - local_log_likelihood(S, G, H), rtol=1e-3, atol=1e-4)

    proposed, log_v = weighed(ancestral(), 0, LATENTS)

    def of_children(s) -> float:
        return float(np.sum(stats.bernoulli(GATE[s]).logpmf(G) + local_log_likelihood(s, G, H)))

    exact = [[of_children(s) - of_children(S)] for s in proposed["s"]]
    np.testing.assert_allclose(log_v, exact, rtol=1e-3, atol=1e-4)


def test_a_prior_draw_follows_the_model_given_its_parents():
    conditional = conditional_of(ancestral(), 1, LATENTS)

    def one(key):
        bound = pg.Prior().bind(key, conditional)
        values, log_q = bound.draw()
        return values, log_q, bound.score(values)

    values, log_q, scored = jax.device_get(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), NUM_KEYS)))
    g, h = values["g"], values["h"]
    gate = np.array([1 - GATE[S], GATE[S]])
    np.testing.assert_allclose(np.exp(log_q), gate[g] * STEP[g, h], rtol=1e-4)
    np.testing.assert_array_equal(log_q, scored)
    joint = (g[..., None, None] == np.arange(2)[:, None]) & (h[..., None, None] == np.arange(3))
    assert_mean(joint, np.broadcast_to(gate[:, None] * STEP, (3, 2, 3)))


# Users' programs -------------------------------------------------------------------------------------------------------


def wandering_a(data, latents, model):
    """A random shift: the proposal is a mixture with an unknown density; only that of the drawn part is known."""
    loc, scale = given_b(latents["b"]) if "b" in latents else given_x(data)
    shift = 0.4 * jax.random.normal(numpyro.prng_key())
    numpyro.sample("a", dist.Normal(loc + shift * scale, 1.1 * scale))


def wandering_b(data, latents, model):
    loc, scale = given_a(latents["a"], data)
    shift = 0.4 * jax.random.normal(numpyro.prng_key())
    numpyro.sample("b", dist.Normal(loc + shift * scale, 0.92 * scale))


@cache
def wandering() -> pg.APG:
    blocks = [pg.Block("a", proposal=wandering_a), pg.Block("b", proposal=wandering_b)]
    return pg.APG(chain, data={"x": "points"}, blocks=blocks)


def test_evidence_is_unbiased_for_proposals_with_internal_randomness(every_block):
    def report(population):
        return population.total_log_evidence

    estimates = every_block(wandering(), {"x": X}, report, num_runs=20_000, num_sweeps=2, num_particles=3)
    ratios = np.exp(np.asarray(estimates, np.float64) - chain_log_evidence(X))
    deviation = ratios.std(axis=1)
    assert np.all((deviation > 0.05) & (deviation < 2.0))
    assert_mean(ratios.T, 1.0)


def test_scoring_the_drawn_values_under_the_same_key_returns_their_log_q():
    sampler = wandering().check({"x": X})
    data = complete({"x": X}, wandering().axes)
    latents = {"a": jnp.asarray(0.1), "b": jnp.asarray(0.7)}

    def one(key):
        conditional = conditional_at(sampler, 0, data, latents)
        bound, other = (sampler.blocks[0].kernel.bind(k, conditional) for k in (key, jax.random.fold_in(key, 1)))
        values, log_q = bound.draw()
        scores = bound.score(values), other.score(values)
        first, log_q_first = draw_initial(key, sampler, data)
        return log_q, *scores, log_q_first, score_initial(key, sampler, data, first)

    log_q, same_key, other_key, first, scored = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 100))
    np.testing.assert_allclose(log_q, same_key, rtol=1e-6)
    np.testing.assert_allclose(first, scored, rtol=1e-6)
    assert np.all(np.abs(log_q - other_key) > 0)


def test_a_proposal_sees_the_other_blocks_but_never_its_own_values():
    conditional = conditional_of(wandering(), 1, {"a": jnp.asarray(0.1), "b": jnp.asarray(0.7)})
    seen = []

    def watching(data, latents, model):
        seen.append(set(latents))
        wandering_b(data, latents, model)

    values, _ = pg.Block("b", proposal=watching).kernel.bind(jax.random.key(0), conditional).draw()
    assert seen == [{"a"}]
    assert values["b"] != 0.7
