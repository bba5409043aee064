"""Calls that can hang on CPU are named when a sampler is built; in tests these warnings are errors."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import popgibbs as pg
from popgibbs.building import lapack

pytestmark = pytest.mark.usefixtures("quick_compilation")

X = np.array([[0.3, -1.0], [1.2, 0.4], [0.1, 0.7], [-0.5, 0.2]], np.float32)
DEFINITE = jnp.eye(3) + 0.5


@pytest.fixture(autouse=True)
def on_cpu_with_a_jaxlib_that_waits(monkeypatch):
    monkeypatch.delenv("NPROC", raising=False)
    monkeypatch.setattr(lapack, "_jaxlib", lambda: (0, 10, 2))


def found(function: Any, *inputs: Any) -> set[str]:
    jaxpr = lapack._traced(function, *inputs)
    return lapack._waiting(jaxpr, lapack._needed(jaxpr, jaxpr.outvars))


# Whether a function calls LAPACK ----------------------------------------------------------------------------------------

FUNCTIONS = {
    "cholesky": jnp.linalg.cholesky,
    "determinant": jnp.linalg.slogdet,
    "eigenvalues": jnp.linalg.eigh,
    "exponential": jsl.expm,
    "hessenberg": jsl.hessenberg,
    "householder": lambda a: jax.lax.linalg.householder_product(a, a[0]),
    "inverse": jnp.linalg.inv,
    "least squares": lambda a: jnp.linalg.lstsq(a, a[0])[0],
    "product": lambda a: a @ a,
    "pseudoinverse": jnp.linalg.pinv,
    "qr": jnp.linalg.qr,
    "schur": jax.lax.linalg.schur,
    "singular values": jnp.linalg.svd,
    "sorted": jnp.sort,
    "spectrum": jnp.linalg.eig,
    "triangular": lambda a: jsl.solve_triangular(a, a[0], lower=True),
    "tridiagonal": jax.lax.linalg.tridiagonal,
    "tridiagonal system": lambda a: jax.lax.linalg.tridiagonal_solve(a[0], a[1], a[2], a),
    "our cholesky": pg.distributions.cholesky,
    "our density": lambda a: pg.distributions.MultivariateNormal(a[0], a).log_prob(a[1]),
    "our gradient": jax.grad(lambda a: pg.distributions.MultivariateNormal(a[0], precision_matrix=a).log_prob(a[1])),
    "our inverse": lambda a: (pg.distributions.inverse(a), pg.distributions.log_det(a)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls_are_found_exactly_where_functions_lower_to_lapack(name):
    batched = jax.jit(jax.vmap(FUNCTIONS[name])).lower(jnp.stack([DEFINITE, DEFINITE]))
    assert bool(found(FUNCTIONS[name], DEFINITE)) == ("lapack_" in batched.as_text())


def factor_in_a_custom_rule(a):
    @jax.custom_jvp
    def factor(a):
        return jnp.linalg.cholesky(a)

    factor.defjvp(lambda primals, tangents: (factor(*primals), tangents[0]))
    return factor(a)


NESTED = {
    "branch": lambda a: jax.lax.cond(a[0, 0] > 0, jnp.linalg.cholesky, lambda a: a, a),
    "custom rule": factor_in_a_custom_rule,
    "function": jax.jit(jnp.linalg.cholesky),
    "loop": lambda a: jax.lax.while_loop(lambda a: a[0, 0] < 0, jnp.linalg.cholesky, a),
    "map": lambda a: jax.vmap(jnp.linalg.cholesky)(a[None]),
    "rematerialised": jax.checkpoint(jnp.linalg.cholesky),
    "scan": lambda a: jax.lax.scan(lambda a, _: (jnp.linalg.cholesky(a), None), a, None, length=2)[0],
}


@pytest.mark.parametrize("name", NESTED)
def test_calls_are_found_inside_other_code(name):
    assert "cholesky" in found(NESTED[name], DEFINITE)


def test_a_single_matrix_or_an_unused_result_is_safe():
    assert not found(lambda x: jnp.linalg.cholesky(DEFINITE) @ x, jnp.ones(3))
    assert found(lambda x: jnp.linalg.cholesky(jnp.stack([DEFINITE, DEFINITE])) @ x, jnp.ones(3))

    def unused(a):
        jnp.linalg.cholesky(a)
        return a

    assert not found(lambda a: jax.lax.scan(lambda a, _: (unused(a), None), unused(a), None, length=2), DEFINITE)


def test_ffts_are_named_for_the_versions_in_which_they_wait(monkeypatch):
    def both(x):
        return jnp.fft.rfft(x).real[:2] + jnp.linalg.cholesky(DEFINITE * x[0])[:2, 0]

    assert found(both, jnp.ones(4)) == {"cholesky"}
    monkeypatch.setattr(lapack, "_jaxlib", lambda: (0, 11, 1))
    assert found(both, jnp.ones(4)) == {"fft"}
    monkeypatch.setattr(lapack, "_jaxlib", lambda: (0, 9, 2))
    assert found(both, jnp.ones(4)) == set()


# Samplers ---------------------------------------------------------------------------------------------------------------


def observe(mu, x):
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1.0).to_event(1), obs=x)


def constant_covariance(x):
    """NumPyro's distribution with a matrix that all particles share."""
    mu = numpyro.sample("mu", dist.MultivariateNormal(jnp.zeros(2), 4 * jnp.eye(2)))
    observe(mu, x)


def covariance_of_a_latent(x):
    scale = numpyro.sample("scale", dist.Gamma(2.0, 2.0))
    mu = numpyro.sample("mu", dist.MultivariateNormal(jnp.zeros(2), scale * jnp.eye(2)))
    observe(mu, x)


class Exact(eqx.Module):
    """The posterior of `mu` under the model of constant covariance; its precision depends on the number of points."""

    normal: Any = eqx.field(static=True)
    prior_precision: jax.Array

    def __init__(self, normal: Any):
        self.normal, self.prior_precision = normal, jnp.eye(2) / 4

    def __call__(self, data, latents, model):
        real = data.mask["points"]
        precision = self.prior_precision + real.sum() * jnp.eye(2)
        covariance = pg.distributions.inverse(precision)
        numpyro.sample("mu", self.normal(covariance @ (real @ data["x"]), covariance_matrix=covariance))


class Learned(eqx.Module):
    """A learned covariance that all instances share."""

    root: jax.Array

    def __call__(self, data, latents, model):
        real = data.mask["points"]
        numpyro.sample("mu", dist.MultivariateNormal(real @ data["x"] / real.sum(), self.root @ self.root.T))


def build(model: Any, **proposals: Any) -> None:
    blocks = [pg.Block(*name.split("_"), proposal=proposal) for name, proposal in proposals.items()]
    pg.APG(model, data={"x": "points"}, blocks=blocks, example=X)


def test_the_warning_names_the_block_and_the_replacement():
    with pytest.raises(UserWarning, match=r"block 'mu': its proposal calls LAPACK \(cholesky.*use pg\.distributions"):
        build(constant_covariance, mu=Exact(dist.MultivariateNormal))


def test_the_warning_names_the_site():
    with pytest.raises(UserWarning, match=r"the site 'mu' calls LAPACK \(cholesky"):
        build(covariance_of_a_latent, scale_mu=pg.Prior())


def test_there_is_no_warning_where_nothing_can_hang(monkeypatch):
    class Stop(Exception):
        pass

    def stop(*checked: Any) -> None:
        raise Stop(*checked)

    monkeypatch.setattr("popgibbs.building.factory.warn_of_waiting_calls", stop)
    with pytest.raises(Stop) as stopped:
        build(constant_covariance, mu=Exact(dist.MultivariateNormal))
    checked = stopped.value.args
    with pytest.raises(UserWarning, match="LAPACK"):
        lapack.warn_of_waiting_calls(*checked)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(jax, "default_backend", lambda: "gpu")
        lapack.warn_of_waiting_calls(*checked)
    monkeypatch.setenv("NPROC", "1")
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)
    lapack.warn_of_waiting_calls(*checked)
    monkeypatch.setattr(jax, "local_device_count", lambda: 2)
    with pytest.raises(UserWarning, match="JAX_NUM_CPU_DEVICES=1"):
        lapack.warn_of_waiting_calls(*checked)


def test_a_matrix_that_all_particles_share_gives_no_warning():
    build(constant_covariance, mu=Learned(jnp.eye(2)))


def test_our_multivariate_normal_gives_no_warning_and_is_exact():
    proposal = Exact(pg.distributions.MultivariateNormal)
    apg = pg.APG(constant_covariance, data={"x": "points"}, blocks=[pg.Block("mu", proposal=proposal)])
    posterior = apg.sample(jax.random.key(0), [{"x": X}], num_sweeps=1, num_particles=5)
    covariance = 4 * np.ones((len(X), len(X))) + np.eye(len(X))
    exact = sum(stats.multivariate_normal(cov=covariance).logpdf(column) for column in X.T)
    np.testing.assert_allclose(posterior.log_evidence, exact, rtol=1e-5)
    np.testing.assert_allclose(posterior.weights, 1 / 5, rtol=1e-4)
