"""Instances: the accepted forms of data, buckets of ragged sizes, sources of training batches."""

from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popgibbs.data import (
    Finite,
    Simulated,
    as_instances,
    complete,
    into_buckets,
    on_grid,
    pad,
    parse_axes,
    parse_sizes,
    plates,
    unpad,
)

AXES = parse_axes({"x": "points"})
KEY = jax.random.key(0)


def numbered(*sizes: int) -> list[dict[str, np.ndarray]]:
    """Instances whose entries identify their instance."""
    return [{"x": np.full((size, 2), float(i), np.float32)} for i, size in enumerate(sizes)]


def owners(batch: Any) -> list[int]:
    return [int(row[0, 0]) for row in batch["x"]]


# Declared axes ----------------------------------------------------------------------------------------------------------


def test_axes_are_declared_by_a_name_or_by_a_tuple_of_names() -> None:
    axes = parse_axes({"x": "points", "y": ["points", None], "w": (None, "groups"), "b": ()})
    assert axes == {"x": ("points",), "y": ("points", None), "w": (None, "groups"), "b": ()}
    assert plates(axes) == ("points", "groups")


def test_complete_instance_has_a_mask_for_every_declared_plate() -> None:
    data = complete({"x": jnp.zeros((3, 2)), "w": jnp.zeros((5, 4))}, parse_axes({"x": "points", "w": (None, "groups")}))
    assert {plate: mask.tolist() for plate, mask in data.mask.items()} == {"points": [True] * 3, "groups": [True] * 4}
    assert set(data) == set(data.keys()) == {"x", "w"}
    assert "x" in data
    assert "z" not in data


# Forms of data ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        [{"x": [[1.0, 2.0]]}, {"x": [[3.0, 4.0]]}],
        {"x": np.array([[[1.0, 2.0]], [[3.0, 4.0]]])},
        [np.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]])],
        np.array([[[1.0, 2.0]], [[3.0, 4.0]]]),
    ],
    ids=["dicts", "stacked", "bare", "stacked-bare"],
)
def test_every_form_of_data_gives_the_same_instances(data: Any) -> None:
    found = as_instances(data, AXES)
    assert [instance["x"].tolist() for instance in found] == [[[1.0, 2.0]], [[3.0, 4.0]]]
    assert all(instance["x"].dtype == np.float32 for instance in found)


def test_integers_and_booleans_keep_their_kind() -> None:
    (found,) = as_instances([{"x": np.array([1, 2]), "b": np.array([True])}], AXES)
    assert found["x"].dtype == np.int32
    assert found["b"].dtype == bool


def test_64_bit_numbers_that_fit_are_accepted_in_any_byte_order() -> None:
    integers, reals = np.array([-(2**31), 2**31 - 1], ">i8"), np.array([1.5, -3e38], ">f8")
    (found,) = as_instances([{"x": integers, "y": reals, "z": reals.astype(np.longdouble)}], AXES)
    assert [found[name].dtype for name in "xyz"] == [np.int32, np.float32, np.float32]
    assert found["x"].tolist() == integers.tolist()
    assert found["y"].tolist() == found["z"].tolist() == reals.astype(np.float32).tolist()


TWO = parse_axes({"x": "points", "y": "points"})


@pytest.mark.parametrize(
    ("data", "axes", "message"),
    [
        ([{"x": [1.0, np.nan]}], AXES, r"instance 0: 'x' has values that are not finite"),
        ([{"x": [1.0]}, {"x": [np.inf]}], AXES, r"instance 1: 'x' has values that are not finite"),
        ([{"x": 1.0}], AXES, r"instance 0: 'x' has shape \(\), but its axes are declared as \('points',\)"),
        ([{"x": ["a"]}], AXES, r"instance 0: 'x' has dtype <U1, which is not numeric"),
        ([{"x": [1.0, 2.0]}, {"y": [1.0]}], AXES, r"instance 1 lacks the arrays \['x'\].*it has \['y'\]"),
        ([{"x": np.zeros((0, 2))}], AXES, r"instance 0: 'x' has no elements along 'points'"),
        ([{"x": [1.0, 2.0], "y": [1.0]}], TWO, r"'y' has 1 elements along 'points', but other arrays have 2"),
        ([np.zeros(2)], TWO, r"bare arrays are ambiguous for the arguments \['x', 'y'\]"),
        ([{"x": [1.0]}, np.zeros((1, 1))], AXES, "instance 1"),
        ([], AXES, "there are no instances"),
        ({"x": np.zeros((0, 3))}, AXES, "there are no instances"),
        ({"x": np.zeros((2, 3)), "y": np.zeros((3, 3))}, TWO, r"share their leading axis.*'x': 2, 'y': 3"),
        ({"x": 1.0}, AXES, "share their leading axis"),
        (None, AXES, "instances must be a list of dicts, a dict of arrays or a list of arrays, not None"),
        (3, AXES, "instances must be a list of dicts.*not int"),
        ([{"x": [[1.0, 2.0], [3.0]]}], AXES, r"instance 0: 'x' cannot be made an array"),
        ({"x": [[1.0, 2.0], [3.0]]}, AXES, r"'x' cannot be made an array"),
        ([{"x": jax.random.key(0)}], AXES, r"instance 0: 'x' cannot be made an array"),
        ([{"x": [None]}], AXES, r"instance 0: 'x' has dtype object, which is not numeric"),
        ([np.ma.array([1.0, 2.0], mask=[False, True])], AXES, r"instance 0: 'x' has masked values"),
        ([{"x": [0, 2**31]}], AXES, r"instance 0: 'x' holds 2147483648, which does not fit into int32; rescale it"),
        ([{"x": [0, -(2**31) - 1]}], AXES, r"holds -2147483649, which does not fit into int32"),
        ([{"x": np.array([2**32], np.uint64)}], AXES, r"holds 4294967296, which does not fit into uint32"),
        ([{"x": [1.0, 4e38]}], AXES, r"instance 0: 'x' holds 4e\+38, which does not fit into float32; rescale it"),
        ([{"x": np.array([-1e39], np.longdouble)}], AXES, r"holds -1e\+39, which does not fit into float32"),
    ],
    ids=[
        "nan",
        "inf",
        "shape",
        "dtype",
        "missing",
        "no-elements",
        "sizes",
        "ambiguous",
        "mixed",
        "empty-list",
        "empty-stack",
        "leading",
        "scalar",
        "none",
        "number",
        "uneven",
        "uneven-stack",
        "random-key",
        "none-in-it",
        "masked",
        "int64-above",
        "int64-below",
        "uint64",
        "overflow",
        "long-overflow",
    ],
)
def test_bad_data_is_named(data: Any, axes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_instances(data, axes)


# Buckets ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=40))
def test_buckets_are_at_most_two_and_hold_every_instance_once(sizes: list[int]) -> None:
    buckets = into_buckets(numbered(*sizes), AXES)
    assert len(buckets) <= 2
    assert sorted(i for bucket in buckets for i in bucket.indices) == list(range(len(sizes)))
    for bucket in buckets:
        padded = bucket.data["x"].shape[1]
        assert padded in ({on_grid(size) for size in range(1, 31)} if len(set(sizes)) > 1 else sizes)
        assert bucket.num_real == sum(sizes[i] for i in bucket.indices)
        assert bucket.num_padded == padded * len(bucket)
        for row, i in enumerate(bucket.indices):
            assert bucket.data.mask["points"][row].tolist() == [place < sizes[i] for place in range(padded)]
            assert np.all(bucket.data["x"][row] == i)


def padded_sizes(*sizes: int, **options: Any) -> list[int]:
    return [bucket.data["x"].shape[1] for bucket in into_buckets(numbered(*sizes), AXES, **options)]


def test_the_grid_has_two_sizes_per_factor_of_two() -> None:
    assert sorted({on_grid(size) for size in range(1, 100)}) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    assert all(size <= on_grid(size) <= max(size, 1.5 * size - 0.5) for size in range(1, 1000))
    finer = sorted({on_grid(size, per_doubling=4) for size in range(1, 40)})
    assert finer == [*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40]


def test_instances_of_one_size_are_not_padded() -> None:
    assert padded_sizes(5, 5, 5) == [5]


def test_ragged_instances_of_other_calls_have_the_same_padded_sizes() -> None:
    assert padded_sizes(40, 55, 70, 120, 90, 65, 110) == padded_sizes(100, 62, 101, 33) == [64, 128]


def test_one_large_instance_does_not_make_small_ones_large() -> None:
    assert padded_sizes(*[9, 10, 12] * 10, 1000) == [16, 1024]


def test_instances_that_cannot_be_padded_keep_their_sizes() -> None:
    assert padded_sizes(5, 2, 9, 2, 7, 5, can_pad=False) == [2, 5, 7, 9]


def test_given_sizes_replace_the_grid_even_for_instances_of_one_size() -> None:
    given = {"points": (10, 50, 20)}
    assert padded_sizes(7, 12, 9, 21, sizes=given) == [10, 20, 50]
    assert padded_sizes(12, 12, sizes=given) == [20]
    with pytest.raises(ValueError, match=r"instance 1 has 51 elements along 'points', more than the largest of sizes="):
        padded_sizes(12, 51, sizes=given)


def test_two_plates_share_the_two_shapes() -> None:
    axes: Any = {"y": ("groups", "obs")}
    sizes = [(3, 5), (9, 40), (10, 33), (2, 6), (3, 7)]
    buckets = into_buckets([{"y": np.zeros(shape)} for shape in sizes], axes)
    assert [(bucket.data["y"].shape[1:], bucket.indices.tolist()) for bucket in buckets] == [
        ((3, 12), [0, 3, 4]),
        ((12, 48), [1, 2]),
    ]


@pytest.mark.parametrize("sizes", [{"points": 3}, {"points": []}, {"points": [2.5]}, {"points": [0, 3]}])
def test_sizes_that_are_no_list_of_whole_numbers_are_refused(sizes: Any) -> None:
    with pytest.raises(ValueError, match=r"sizes=\{'points': .* must be a list of positive whole numbers"):
        parse_sizes(sizes, AXES)


def test_sizes_of_an_unknown_plate_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sizes= names the plates \['words'\], but `data=` declares \['points'\]"):
        parse_sizes({"words": [3]}, AXES)


def test_padding_repeats_the_last_element_and_unpadding_removes_it() -> None:
    x = np.arange(6.0).reshape(3, 2)
    padded = pad({"x": x, "y": x}, {"x": ("points", None), "y": (None, "points")}, {"points": 4})
    assert padded["x"].tolist() == [*x.tolist(), x[-1].tolist()]
    assert padded["y"].tolist() == [[*row, row[-1], row[-1]] for row in x.tolist()]
    np.testing.assert_array_equal(unpad(padded["y"], 1, np.array([True, True, False, False])), x)


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        ([{"x": np.zeros((2, 2))}, {"x": np.zeros((2, 3))}], r"instance 1: 'x' has shape \(2, 3\).*declare the axis"),
        ([{"x": np.zeros(2)}, {"x": np.zeros(2), "y": np.zeros(1)}], r"instance 1 has the arrays \['x', 'y'\]"),
    ],
    ids=["undeclared-axis", "other-arrays"],
)
def test_instances_that_do_not_stack_are_named(instances: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        into_buckets(instances, AXES)


# Sources of training batches --------------------------------------------------------------------------------------------


def test_an_epoch_visits_every_instance_once() -> None:
    source = Finite(into_buckets(numbered(3, 3, 3, 3, 5, 5), AXES))
    epochs = [[owners(source.batch(KEY, 3 * epoch + step, 2)) for step in range(3)] for epoch in range(4)]
    for epoch in epochs:
        assert sorted(chain(*epoch)) == list(range(6))
        assert all({4, 5} == set(batch) or not {4, 5} & set(batch) for batch in epoch)
    assert any(epoch != epochs[0] for epoch in epochs)


def test_a_batch_that_a_bucket_does_not_fill_repeats_its_instances() -> None:
    source = Finite(into_buckets(numbered(3, 3, 3, 5), AXES))
    batches = [owners(source.batch(KEY, step, 2)) for step in range(3)]
    assert all(len(batch) == 2 for batch in batches)
    assert set(chain(*batches)) == {0, 1, 2, 3}
    assert [3, 3] in batches


def test_batches_depend_only_on_seed_and_step() -> None:
    instances = numbered(*[3] * 12)
    forward = Finite(into_buckets(instances, AXES), seed=1)
    batches = [owners(forward.batch(KEY, step, 4)) for step in range(6)]
    resumed = Finite(into_buckets(instances, AXES), seed=1)
    assert owners(resumed.batch(jax.random.key(9), 4, 4)) == batches[4]
    assert owners(resumed.batch(KEY, 1, 4)) == batches[1]
    assert [owners(Finite(into_buckets(instances, AXES), seed=2).batch(KEY, step, 4)) for step in range(6)] != batches


def test_one_source_serves_any_batch_size() -> None:
    source = Finite(into_buckets(numbered(3, 3, 3, 3), AXES))
    assert [len(owners(source.batch(KEY, 0, size))) for size in (2, 3)] == [2, 3]


def test_simulated_batches_depend_only_on_the_key() -> None:
    source = Simulated(lambda key: {"x": jax.random.normal(key, (3, 2))}, AXES)
    batch = source.batch(KEY, 0, 4)
    assert batch["x"].shape == (4, 3, 2)
    assert batch.mask["points"].shape == (4, 3)
    assert np.all(batch.mask["points"])
    assert len(np.unique(batch["x"])) == 24
    np.testing.assert_array_equal(source.batch(KEY, 7, 4)["x"], batch["x"])
    np.testing.assert_array_equal(source.batch(KEY, 0, 2)["x"], batch["x"][:2])
    assert not np.any(source.batch(jax.random.key(1), 0, 4)["x"] == batch["x"])
