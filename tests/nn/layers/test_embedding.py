"""Embedding layers: initial values, pretrained tables, what reaches the operations."""

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework import optim
from psframework.autograd import SparseRows, tensor
from psframework.errors import ArgumentError
from psframework.nn import manual_seed
from psframework.nn.layers.embedding import Embedding, EmbeddingBag

IDS = np.array([[0, 2, 2], [3, 2, 0]])


def test_initial_values_are_standard_normal_with_a_row_of_zeros() -> None:
    manual_seed(0)
    table = Embedding(1000, 30, padding_idx=-1).weight.data
    assert table.dtype == np.float32 and not table[999].any()
    assert abs(table.mean()) < 0.02 and table[:999].std() == pytest.approx(1, abs=0.02)
    assert not EmbeddingBag(5, 3, padding_idx=2, dtype=np.float64).weight.data[2].any()


def test_lookup_and_padding() -> None:
    layer = Embedding(5, 3, padding_idx=2)
    out = layer(IDS)
    np.testing.assert_array_equal(out.data, layer.weight.data[IDS])
    out.sum().backward()
    np.testing.assert_array_equal(layer.weight.grad[:, 0], [2, 0, 0, 1, 0])


def test_options_reach_the_operation() -> None:
    layer = Embedding(5, 3, max_norm=0.5, scale_grad_by_freq=True, sparse=True)
    layer(IDS).sum().backward()
    assert isinstance(layer.weight.grad, SparseRows)
    np.testing.assert_allclose(layer.weight.grad.values, np.ones((3, 3)))
    assert np.linalg.norm(layer.weight.data[IDS], axis=-1).max() <= 0.5
    bag = EmbeddingBag(5, 3, mode="sum", include_last_offset=True)
    out = bag(IDS[0], np.array([0, 1, 3]), np.array([1, 2, 0.5], np.float32))
    np.testing.assert_allclose(out.data, [bag.weight.data[0], bag.weight.data[2] * 2.5], rtol=1e-6)


def test_sparse_steps_touch_the_rows_that_were_used() -> None:
    layer = Embedding(5, 3, sparse=True)
    before = layer.weight.data.copy()
    layer(IDS).sum().backward()
    optim.SGD(layer.parameters(), lr=0.1).step()
    np.testing.assert_allclose(
        before - layer.weight.data, np.outer([0.2, 0, 0.3, 0.1, 0], np.ones(3)), atol=1e-6
    )
    assert (before[[1, 4]] == layer.weight.data[[1, 4]]).all()


def test_pretrained_tables_are_shared_and_frozen() -> None:
    table = np.arange(6.0).reshape(3, 2)
    layer = Embedding.from_pretrained(table, padding_idx=0)
    assert layer.weight.data is table and not layer.weight.requires_grad and layer.padding_idx == 0
    assert table[0, 1] == 1
    bag = EmbeddingBag.from_pretrained(tensor(table), freeze=False, mode="max")
    assert bag.weight.requires_grad and bag(np.array([[0, 2]])).tolist() == [[4, 5]]


def test_repr() -> None:
    assert repr(Embedding(5, 3)) == "Embedding(5, 3)"
    assert repr(Embedding(5, 3, 1, sparse=True)) == "Embedding(5, 3, padding_idx=1, sparse=True)"
    assert repr(EmbeddingBag(5, 3)) == "EmbeddingBag(5, 3, mode='mean')"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Embedding(0, 3), "Embedding needs positive sizes, not 0 and 3"),
        (lambda: Embedding(5, 3, padding_idx=5), "Embedding: padding_idx 5 names no row of a table of 5"),
        (lambda: EmbeddingBag(5, 3, mode="min"), "EmbeddingBag: mode 'min' is none of"),
        (lambda: Embedding.from_pretrained(np.ones(3)), "Embedding.from_pretrained: weight must be"),
        (lambda: Embedding(3, 3)(IDS), "embedding: id 3 names no row of a table of 3"),
        (lambda: Embedding(5, 3)(IDS * 1.0), "array of integers, not float64"),
    ],
)
def test_misuse(call, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        call()


@pytest.mark.oracle
def test_names_and_order_of_arguments_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    for ours, theirs, args in [
        (Embedding, torch.nn.Embedding, (5, 3, 1, 2.0, 1.0, True, False)),
        (EmbeddingBag, torch.nn.EmbeddingBag, (5, 3, 2.0, 1.0, False, "sum", False)),
    ]:
        mine, other = ours(*args), theirs(*args)
        mine.load_state_dict({name: value.numpy() for name, value in other.state_dict().items()})
        np.testing.assert_allclose(
            mine(IDS).data, other(torch.tensor(IDS)).detach().numpy(), rtol=1e-5, atol=1e-6
        )


def test_a_table_that_is_also_used_densely_has_a_dense_gradient() -> None:
    """Tied weights: the rows of the input's embedding are the output layer's."""
    grads = []
    for sparse in (False, True):
        manual_seed(0)
        layer = Embedding(5, 3, sparse=sparse)
        F.cross_entropy(F.linear(layer(IDS[0]), layer.weight), IDS[1]).backward()
        grads.append(layer.weight.grad)
    assert type(grads[1]) is np.ndarray
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-6)


@pytest.mark.parametrize("make", [lambda p: optim.SGD(p, lr=0.1), lambda p: optim.Adagrad(p, lr=0.1)])
def test_sparse_training_equals_dense_training(make) -> None:
    tables = []
    for sparse in (False, True):
        manual_seed(0)
        layer = EmbeddingBag(20, 4, sparse=sparse)
        optimizer, rng = make(layer.parameters()), np.random.default_rng(1)
        for _ in range(5):
            optimizer.zero_grad()
            F.mse_loss(layer(rng.integers(0, 20, (6, 3))), rng.random((6, 4), np.float32)).backward()
            optimizer.step()
        tables.append(layer.weight.data)
    np.testing.assert_allclose(tables[1], tables[0], rtol=1e-6)


def test_rows_are_shortened_by_their_largest_element() -> None:
    layer = Embedding(2, 3, max_norm=1.0, norm_type=np.inf, dtype=np.float64)
    layer.weight.data[...] = [[0.5, 0.2, -2.0], [0.1, 0.2, 0.3]]
    layer(np.array([0, 1]))
    np.testing.assert_allclose(layer.weight.data, [[0.25, 0.1, -1.0], [0.1, 0.2, 0.3]], rtol=1e-6)
    with pytest.raises(ArgumentError, match="norm_type must be above 0, not 0"):
        Embedding(2, 3, max_norm=1.0, norm_type=0)(np.array([0]))
