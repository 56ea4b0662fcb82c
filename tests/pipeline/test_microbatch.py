"""Micro-batches are those of np.array_split, whatever the tree, and joining them gives the batch again."""

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.autograd import Tensor
from psframework.backend import bfloat16
from psframework.errors import ArgumentError
from psframework.pipeline.microbatch import join, rows, signature, split, split_tree
from psframework.testing.strict_device import strict_devices

Pair = namedtuple("Pair", "left right")


def batch(n: int) -> Any:
    """A tree with every kind of node."""
    return {
        "ids": np.arange(n * 3).reshape(n, 3),
        "pair": Pair(np.arange(n, dtype=np.float32), [np.ones((n, 2, 2)), None]),
        "plain": (0.5, True, np.float64(2), np.array(7)),
    }


def test_a_copy_is_of_its_own() -> None:
    x, y = {"x": np.zeros((4, 2)), "scale": 2.0}, np.zeros(4)
    made = split(x, y, 2).copied()
    x["x"][...] = y[...] = 1
    assert [(part["x"].sum(), part["scale"]) for part in made.inputs] == [(0, 2)] * 2
    assert [part.sum() for part in made.targets] == [0, 0] and made.sizes == [2, 2]


@given(n=st.integers(1, 40), count=st.integers(1, 50))
def test_parts_are_those_of_array_split(n: int, count: int) -> None:
    x, y = np.arange(n * 2).reshape(n, 2), np.arange(n) * 10
    made = split(x, y, count)
    wanted = [part for part in np.array_split(x, count) if len(part)]
    assert len(made) == len(wanted) == min(n, count)
    assert made.sizes == [len(part) for part in wanted]
    for part, expected in zip(made.inputs, wanted, strict=True):
        np.testing.assert_array_equal(part, expected)
    for part, expected in zip(made.targets, np.array_split(y, count)):
        np.testing.assert_array_equal(part, expected)
    assert made.weights == [size / n for size in made.sizes]


@given(n=st.integers(1, 20), count=st.integers(1, 25))
def test_weighted_means_add_up_to_that_of_the_batch(n: int, count: int) -> None:
    x = np.random.default_rng(n).normal(size=n)
    made = split(x, None, count)
    total = sum(weight * part.mean() for weight, part in zip(made.weights, made.inputs, strict=True))
    assert total == pytest.approx(x.mean(), rel=1e-12, abs=1e-15)


@given(n=st.integers(1, 20), count=st.integers(1, 25))
def test_a_tree_is_cut_and_joined(n: int, count: int) -> None:
    whole = batch(n)
    parts = split_tree(whole, count)
    assert sum(rows(part) for part in parts) == n
    joined = join(parts)
    assert isinstance(joined["pair"], Pair)
    np.testing.assert_equal(joined, whole)
    assert joined["ids"].dtype == whole["ids"].dtype
    assert parts[-1]["plain"] == whole["plain"]
    assert parts[-1]["pair"].right[1] is None


def test_parts_share_the_memory_of_the_batch() -> None:
    x = np.zeros((6, 2))
    assert all(np.shares_memory(part, x) for part in split(x, None, 3).inputs)


def test_without_targets_each_part_has_none() -> None:
    assert split(np.zeros(5), None, 2).targets == [None, None]


@pytest.mark.parametrize("dtype", ["float16", bfloat16, "int64", "bool"], ids=str)
def test_dtypes_stay(dtype: Any) -> None:
    x = np.zeros((5, 2)).astype(dtype)
    made = split(x, x, 2)
    assert {part.dtype for part in made.inputs} == {np.dtype(dtype)}
    assert join(made.inputs).dtype == dtype


def test_tensors_are_taken_as_their_arrays() -> None:
    x = Tensor(np.arange(4.0), requires_grad=True)
    made = split([x], x, 2)
    assert [type(part[0]) for part in made.inputs] == [np.ndarray] * 2
    np.testing.assert_array_equal(join([[Tensor(part)] for part in made.targets])[0], x.data)


def test_arrays_of_a_device_stay_there() -> None:
    with strict_devices("gpu-0") as (gpu,):
        x = gpu.arange(5)
        made = split(x, {"y": x}, 2)
        joined = join(made.targets)["y"]
        assert all(part.device is gpu for part in (*made.inputs, joined))
        assert joined.host.tolist() == [0, 1, 2, 3, 4]
        assert signature(x) != signature(x.host)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros(6), np.zeros(5), r"y has 5 rows, x has 6: give each array a row for each sample"),
        (
            ({"a": np.zeros(6), "mask": np.zeros(5)},),
            None,
            r"x\[0\]\['mask'\] has 5 rows, x\[0\]\['a'\] has 6",
        ),
        (np.zeros(2), [np.zeros(1)], r"y\[0\] has 1 row, x has 2"),
        (np.zeros((0, 3)), np.zeros(0), r"x has 0 rows: leave out empty batches"),
        (3.0, None, r"no rows: pass arrays whose first axis"),
        (np.zeros(2), [0, 1], r"y is a list without arrays: pass np.asarray\(y\)"),
        ({"a": "text"}, None, r"x\['a'\] is a str: pass arrays, numbers, None"),
    ],
    ids=["x and y", "inside", "one row", "empty", "number", "list", "text"],
)
def test_what_is_no_batch_is_named(x: Any, y: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        split(x, y, 2)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_the_count_is_checked(count: Any) -> None:
    with pytest.raises(ArgumentError, match="microbatches="):
        split(np.zeros(4), None, count)


@pytest.mark.parametrize(
    ("trees", "message"),
    [
        ([], "no micro-batches"),
        (
            [(np.zeros(1),), [np.zeros(1), None]],
            r"micro-batch 1 gave result\[0\], result\[1\], micro-batch 0",
        ),
        (
            [np.zeros((1, 2)), np.zeros((1, 3))],
            r"result has float64 rows of shape \(2,\) and float64 rows of",
        ),
        ([np.zeros(1), np.zeros(1, np.int32)], r"result has float64 rows of shape \(\) and int32 rows"),
        ([{"n": 1}, {"n": 2}], r"result\['n'\] has no rows and differs between micro-batches"),
        ([np.zeros(()), np.ones(())], r"result has no rows and differs"),
        ([np.zeros(1), None], r"result has no rows and differs"),
    ],
    ids=["none", "structure", "shape", "dtype", "number", "no axes", "array and none"],
)
def test_what_does_not_fit_together_is_named(trees: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        join(trees)


def test_signatures_tell_what_can_be_joined() -> None:
    mine = signature({"a": np.zeros((3, 2)), "k": 1})
    assert mine == signature({"a": np.ones((5, 2)), "k": 1})
    others = [
        {"a": np.zeros((3, 1)), "k": 1},
        {"a": np.zeros((3, 2), np.float32), "k": 1},
        {"a": np.zeros((3, 2)), "k": 2},
        {"a": np.zeros((3, 2)), "k": True},
        {"b": np.zeros((3, 2)), "k": 1},
        [np.zeros((3, 2)), 1],
        (np.zeros((3, 2)), 1),
        {0: np.zeros((3, 2)), 1: 1},
    ]
    assert mine not in [signature(other) for other in others]
    assert len({mine, *map(signature, others)}) == 9
