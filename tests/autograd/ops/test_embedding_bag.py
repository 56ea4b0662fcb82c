"""Bags of rows: against loops over the bags, and torch."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.autograd import SparseRows, tensor
from psframework.autograd.ops.embedding_bag import embedding_bag
from psframework.errors import ArgumentError

rng = np.random.default_rng(0)
TABLE, IDS = rng.standard_normal((6, 3)), np.array([[0, 2, 2], [5, 2, 0]])
FLAT, OFFSETS = np.array([1, 1, 4, 0, 5, 5, 5]), np.array([0, 0, 3, 3, 7])  # three bags are empty
REDUCE = {"sum": lambda rows: rows.sum(0), "mean": lambda rows: rows.mean(0), "max": lambda rows: rows.max(0)}


def by_loop(bags, mode):
    return np.stack([REDUCE[mode](TABLE[list(bag)]) if len(bag) else np.zeros(3) for bag in bags])


@pytest.mark.parametrize("mode", REDUCE)
@given(bags=st.lists(st.lists(st.integers(0, 5), max_size=5), min_size=1, max_size=6))
def test_flat_bags(mode, bags):
    flat = np.array([i for bag in bags for i in bag], np.int64)
    offsets = np.cumsum([0, *map(len, bags)])
    expected = by_loop(bags, mode)
    found = embedding_bag(flat, TABLE, offsets[:-1], mode=mode)
    np.testing.assert_allclose(found.data, expected)
    found = embedding_bag(flat, TABLE, offsets, mode=mode, include_last_offset=True)
    np.testing.assert_allclose(found.data, expected)


@pytest.mark.parametrize("mode", REDUCE)
def test_bags_of_one_length_and_padding(mode):
    np.testing.assert_allclose(embedding_bag(IDS, TABLE, mode=mode).data, by_loop(IDS, mode))
    found = embedding_bag(IDS, TABLE, mode=mode, padding_idx=2).data
    np.testing.assert_allclose(found, by_loop([[0], [5, 0]], mode))
    assert not embedding_bag(IDS[:, 1:2], TABLE, mode=mode, padding_idx=2).data.any()


def test_sparse_gradients_name_the_rows_that_were_used():
    table = tensor(TABLE, True)
    embedding_bag(FLAT, table, OFFSETS, mode="sum", sparse=True).sum().backward()
    assert isinstance(table.grad, SparseRows) and table.grad.rows.tolist() == [0, 1, 4, 5]
    np.testing.assert_array_equal(table.grad.values[:, 0], [1, 2, 1, 3])


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradients_divided_by_how_often_a_row_comes(mode):
    """By a loop: torch 2.13 divides row 5 here, which comes once, by 3."""
    table, seed = tensor(TABLE, True), rng.standard_normal((2, 3))
    embedding_bag(IDS, table, mode=mode, scale_grad_by_freq=True).backward(seed)
    expected = np.zeros_like(TABLE)
    for bag, gradient in zip(IDS, seed):
        for row in bag:
            expected[row] += gradient / (row == IDS).sum() / (3 if mode == "mean" else 1)
    np.testing.assert_allclose(table.grad, expected)


def test_long_rows_are_shortened_in_place():
    table = tensor(TABLE * 10)
    embedding_bag(IDS, table, max_norm=1.0)
    np.testing.assert_allclose(np.linalg.norm(table.data[[0, 2, 5]], axis=1), np.ones(3), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: embedding_bag(IDS, TABLE, OFFSETS), "offsets go with a flat input"),
        (lambda: embedding_bag(FLAT, TABLE), r"must be \(bags, length\), or \(n,\) with offsets"),
        (lambda: embedding_bag(FLAT, TABLE, OFFSETS[1:] + 1), "must ascend from 0"),
        (lambda: embedding_bag(FLAT, TABLE, np.array([0, 3, 2])), "must ascend from 0"),
        (lambda: embedding_bag(FLAT, TABLE, np.array([0, 8])), "offset 8 is beyond the 7 ids"),
        (lambda: embedding_bag(FLAT, TABLE, np.array([], int)), "7 ids, but no bag"),
        (lambda: embedding_bag(FLAT, TABLE, OFFSETS.astype(float)), "offsets must be an array of integers"),
        (lambda: embedding_bag(FLAT, TABLE, OFFSETS[:3], include_last_offset=True), "the length of input, 7"),
        (lambda: embedding_bag(FLAT + 9, TABLE, OFFSETS), "embedding_bag: id 10 names no row"),
        (lambda: embedding_bag(IDS, TABLE, mode="min"), "'min' is none of sum, mean, max"),
        (lambda: embedding_bag(IDS, TABLE, mode="max", sparse=True), "goes neither with sparse"),
        (lambda: embedding_bag(IDS, TABLE, per_sample_weights=np.ones((2, 3))), "mode is 'mean'"),
        (lambda: embedding_bag(IDS, TABLE, mode="sum", per_sample_weights=np.ones(3)), r"input, \(2, 3\)"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("ids", "offsets", "last"), [(IDS, None, False), (FLAT, OFFSETS, False), (FLAT, OFFSETS, True)]
)
def test_all_options_equal_torchs(ids, offsets, last):
    torch = pytest.importorskip("torch")
    options = {
        "mode": ["sum", "mean", "max"],
        "padding_idx": [None, 5, -4],
    }
    factors = rng.standard_normal(ids.shape)
    for mode, padding, weighted in itertools.product(*options.values(), [False, True]):
        if weighted and mode != "sum":
            continue
        ours, theirs = tensor(TABLE, True), torch.tensor(TABLE, requires_grad=True)
        our_factors, their_factors = tensor(factors, True), torch.tensor(factors, requires_grad=True)
        chosen = {
            "mode": mode,
            "padding_idx": padding,
            "include_last_offset": last,
        }
        found = embedding_bag(
            ids, ours, offsets, per_sample_weights=our_factors if weighted else None, **chosen
        )
        expected = torch.nn.functional.embedding_bag(
            torch.tensor(ids),
            theirs,
            None if offsets is None else torch.tensor(offsets),
            per_sample_weights=their_factors if weighted else None,
            **chosen,
        )
        np.testing.assert_allclose(found.data, expected.detach().numpy(), 1e-9, 1e-12, err_msg=str(chosen))
        seed = rng.standard_normal(found.shape)
        found.backward(seed)
        expected.backward(torch.tensor(seed))
        np.testing.assert_allclose(ours.grad, theirs.grad.numpy(), 1e-9, 1e-12, err_msg=str(chosen))
        if weighted:
            np.testing.assert_allclose(our_factors.grad, their_factors.grad.numpy(), 1e-9, 1e-12)
