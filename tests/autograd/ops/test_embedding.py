"""Rows of a table: gradients of repeated rows, dense and sparse; what ids are refused."""

import itertools
from functools import partial

import numpy as np
import pytest

from psframework.autograd import SparseRows, Tensor, tensor
from psframework.autograd.ops.embedding import embedding
from psframework.autograd.ops.embedding_bag import embedding_bag
from psframework.errors import ArgumentError
from psframework.testing.strict_device import strict_devices

rng = np.random.default_rng(0)
TABLE, IDS = rng.standard_normal((6, 3)), np.array([[0, 2, 2], [5, 2, 0]])


def gradient(ids, seed, **options):
    table = tensor(TABLE, True)
    embedding(ids, table, **options).backward(seed)
    return table.grad


def test_rows():
    np.testing.assert_array_equal(embedding(IDS, TABLE).data, TABLE[IDS])
    np.testing.assert_array_equal(embedding(tensor(IDS.astype(np.uint8)), TABLE).data, TABLE[IDS])
    assert embedding(IDS[:0], TABLE).shape == (0, 3, 3) and embedding(np.array(4), TABLE).shape == (3,)


@pytest.mark.parametrize("ids", [IDS, IDS[:0], np.array(4), rng.integers(0, 6, 200)])
def test_gradients_of_repeated_rows_are_summed(ids):
    seed = rng.standard_normal((*ids.shape, 3))
    expected = np.zeros_like(TABLE)
    np.add.at(expected, ids, seed)
    np.testing.assert_allclose(gradient(ids, seed), expected)
    sparse = gradient(ids, seed, sparse=True)
    assert isinstance(sparse, SparseRows)
    np.testing.assert_array_equal(sparse.rows, np.unique(ids))
    np.testing.assert_allclose(sparse.to_dense(), expected)


def test_sums_do_not_depend_on_the_run():
    ids, seed = rng.integers(0, 6, 1000), rng.standard_normal((1000, 3)).astype(np.float32)
    first = gradient(ids, seed)
    np.testing.assert_array_equal(gradient(ids, seed), first)


def test_a_padding_row_gets_no_gradient():
    seed = np.ones((2, 3, 3))
    for padding in (2, -4):
        assert not gradient(IDS, seed, padding_idx=padding)[2].any()
        assert gradient(IDS, seed, padding_idx=padding, sparse=True).rows.tolist() == [0, 5]


def test_long_rows_are_shortened_in_place_where_they_are_used():
    table = tensor(TABLE * 10, True)
    version = table.version
    out = embedding(IDS, table, max_norm=1.0)
    np.testing.assert_allclose(np.linalg.norm(out.data, axis=-1), np.ones((2, 3)), rtol=1e-6)
    np.testing.assert_array_equal(table.data[[1, 3, 4]], 10 * TABLE[[1, 3, 4]])
    assert table.version > version


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: embedding(IDS.astype(float), TABLE),
            r"array of integers, not float64: use .astype\(np.int64\)",
        ),
        (lambda: embedding([1, 2], TABLE), "array of integers, not list"),
        (lambda: embedding(IDS > 1, TABLE), "array of integers, not bool"),
        (lambda: embedding(IDS + 1, TABLE), r"id 6 names no row of a table of 6: ids must be in \[0, 6\)"),
        (lambda: embedding(IDS - 2, TABLE), "id -2 names no row"),
        (lambda: embedding(np.uint8([255]), TABLE), "id 255 names no row"),
        (lambda: embedding(IDS, TABLE[0]), r"table \(rows, size\), not float64 \(3,\)"),
        (lambda: embedding(IDS, TABLE, padding_idx=6), "padding_idx 6 names no row of a table of 6"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


@pytest.mark.oracle
def test_all_options_equal_torchs():
    torch = pytest.importorskip("torch")
    options = {"padding_idx": [None, 2, -1], "max_norm": [None, 1.0], "norm_type": [2.0, 1.0]}
    options |= {"scale_grad_by_freq": [False, True], "sparse": [False, True]}
    seed = rng.standard_normal((2, 3, 3))
    for values in itertools.product(*options.values()):
        chosen = dict(zip(options, values))
        ours, theirs = tensor(TABLE, True), torch.tensor(TABLE, requires_grad=True)
        found = embedding(IDS, ours, **chosen)
        found.backward(seed)
        plain = chosen | {
            "sparse": chosen["sparse"] and not chosen["scale_grad_by_freq"]
        }  # torch refuses both
        expected = torch.nn.functional.embedding(torch.tensor(IDS), theirs + 0, **plain | {"sparse": False})
        expected.backward(torch.tensor(seed))
        np.testing.assert_allclose(found.data, expected.detach().numpy(), 1e-9, err_msg=str(chosen))
        dense = ours.grad.to_dense() if chosen["sparse"] else ours.grad
        np.testing.assert_allclose(dense, theirs.grad.numpy(), 1e-9, err_msg=str(chosen))


def test_every_option_on_a_device():
    options = {"max_norm": 1.0, "scale_grad_by_freq": True, "padding_idx": 2}
    with strict_devices("gpu-0") as [device]:
        for call in (embedding, partial(embedding_bag, mode="mean")):
            here, there = tensor(TABLE, True), Tensor(device.to_device(TABLE), True)
            call(IDS, here, **options).sum().backward()
            call(device.to_device(IDS), there, **options).sum().backward()
            np.testing.assert_allclose(device.asnumpy(there.data), here.data)
            np.testing.assert_allclose(device.asnumpy(there.grad), here.grad)
        with pytest.raises(ArgumentError, match="id 6 names no row"):
            embedding(device.to_device(IDS + 1), there)
        with pytest.raises(ArgumentError, match=r"embedding: operands are on .*\.to\("):
            embedding(device.to_device(IDS), TABLE)
