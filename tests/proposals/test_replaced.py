"""Parts of built proposals that users replace: features, networks, and the families of sites."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import transforms
from scipy import stats
from tests import oracles
from tests.models import located

import popgibbs as pg

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
X = np.array([0.3, 1.9, 1.0], np.float32)


def squares_too(x):
    return jnp.stack([x, x**2], axis=-1)


def linear(num_inputs, num_outputs, key):
    return eqx.nn.Linear(num_inputs, num_outputs, key=key)


def built(**options):
    blocks = [pg.Block("mu", proposal=pg.Neural(**options))]
    return pg.APG(located, data={"x": "points"}, blocks=blocks, example=X)


def test_a_network_and_its_features_can_be_replaced():
    """μ | x ~ N(Σx / 4, 1/4); networks that have learned nothing only cost acceptance."""
    sampler = built(features={"x": squares_too}, network=linear)
    (guess, _) = sampler.built.blocks[0].kernel.update
    entries = guess.statistics.networks["x"]
    assert isinstance(entries.network, eqx.nn.Linear)
    assert entries.network.in_features == 2
    posterior = sampler.sample(KEY, [X], num_sweeps=5, num_particles=10, num_populations=200)
    oracles.assert_mean(np.sum(posterior.weights[0] * posterior[0]["mu"], axis=1), X.sum() / 4)


def test_features_of_nothing_or_without_the_plates_are_refused():
    with pytest.raises(ValueError, match=r"features= names 'y', which is neither a site nor an argument"):
        built(features={"y": squares_too})
    with pytest.raises(ValueError, match=r"features= of 'x' have shape \(\); the first axes must be those of its plates"):
        built(features={"x": jnp.sum})


def spread(x):
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("x", dist.Normal(0.0, sigma), obs=x)


def family(bijection, site="sigma"):
    blocks = [pg.Block("sigma", proposal=pg.Laplace(bijections={site: bijection}))]
    return pg.APG(spread, data={"x": "points"}, blocks=blocks, example=X)


def test_the_family_of_a_site_can_be_replaced():
    """A softplus of a Gaussian instead of a log-normal; the posterior is by quadrature."""
    sampler = family(transforms.SoftplusTransform())
    posterior = sampler.sample(KEY, [X], num_sweeps=5, num_particles=10, num_populations=200)
    grid = np.linspace(1e-3, 12.0, 4_000)
    log_joint = stats.halfnorm(scale=2.0).logpdf(grid) + stats.norm(0.0, grid[:, None]).logpdf(X).sum(axis=1)
    weights = oracles.normalised(log_joint)
    oracles.assert_mean(np.sum(posterior.weights[0] * posterior[0]["sigma"], axis=1), np.sum(weights * grid))
    log_evidence = np.log(np.sum(np.exp(log_joint)) * (grid[1] - grid[0]))
    assert abs(posterior.log_evidence[0] - log_evidence) < 5 * posterior.log_evidence_error[0]


def test_families_that_miss_the_support_or_name_no_site_are_refused():
    with pytest.raises(ValueError, match=r"bijections= names 'tau'; the sites of the block are \['sigma'\]"):
        family(transforms.SoftplusTransform(), site="tau")
    with pytest.raises(ValueError, match=r"block 'sigma'.*cannot draw values.*support is too narrow"):
        family(transforms.SigmoidTransform())
