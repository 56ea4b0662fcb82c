"""Recurrent layers: against torch's, variable lengths, names, shapes, misuse."""

from typing import Any

import numpy as np
import pytest
from torch_twin import agree, flat, twin

from psframework import nn
from psframework.autograd import no_grad, tensor
from psframework.errors import ArgumentError

T, B, FEATURES, HIDDEN = 5, 3, 4, 6
LENGTHS = [5, 2, 3]
LAYERS = ["RNN", "GRU", "LSTM"]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


def make(kind: str, **options: Any) -> Any:
    nn.manual_seed(0)
    return getattr(nn, kind)(FEATURES, HIDDEN, dtype=np.float64, **options)


def states_of(kind: str, *shape: int) -> Any:
    states = [tensor(draw(*shape, seed=i), requires_grad=True) for i in (1, 2)]
    return tuple(states) if kind.startswith("LSTM") else states[0]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bias": False},
]


@pytest.mark.oracle
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "padded"])
@pytest.mark.parametrize("kind", [*LAYERS, "relu"])
def test_layers_equal_torchs(kind: str, lengths: list[int] | None, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    if kind == "relu":
        kind, options = "RNN", options | {"nonlinearity": "relu"}
    ours = make(kind, **options)
    theirs = twin(torch, ours, FEATURES, HIDDEN, **options)
    first = options.get("batch_first", False)
    x = tensor(draw(B, T, FEATURES) if first else draw(T, B, FEATURES), requires_grad=True)
    count = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    states = states_of(kind, count, B, HIDDEN)
    leaves = tuple(torch.tensor(leaf.data, requires_grad=True) for leaf in flat((x, states)))
    given, hx = leaves[0], leaves[1:] if kind == "LSTM" else leaves[1]
    if lengths is None:
        expected = theirs(given, hx)
    else:
        tools = torch.nn.utils.rnn
        packed = tools.pack_padded_sequence(given, torch.tensor(lengths), first, enforce_sorted=False)
        out, ends = theirs(packed, hx)
        expected = (tools.pad_packed_sequence(out, first, total_length=T)[0], ends)
    agree(ours, theirs, (x, states), leaves, ours(x, states, lengths=lengths), expected)


@pytest.mark.parametrize("kind", LAYERS)
def test_padding_changes_nothing(kind: str) -> None:
    layer = make(kind, num_layers=2, bidirectional=True)
    x = draw(T, B, FEATURES)
    out, last = layer(x, lengths=np.array(LENGTHS))
    for b, length in enumerate(LENGTHS):
        alone, end = layer(x[:length, b])
        np.testing.assert_allclose(out.data[:length, b], alone.data, atol=1e-12)
        assert not out.data[length:, b].any()
        for whole, single in zip(flat(last), flat(end), strict=True):
            np.testing.assert_allclose(whole.data[:, b], single.data, atol=1e-12)


@pytest.mark.parametrize("kind", LAYERS)
def test_one_sequence_needs_no_batch_axis(kind: str) -> None:
    layer, x = make(kind, batch_first=True), draw(T, FEATURES)
    out, last = layer(x)
    batch, lasts = layer(x[None])
    assert out.shape == (T, HIDDEN) and {end.shape for end in flat(last)} == {(1, HIDDEN)}
    np.testing.assert_array_equal(out.data, batch.data[0])
    again, _ = layer(x, states_of(kind, 1, HIDDEN))
    assert again.shape == out.shape and not np.allclose(again.data, out.data)
    assert flat(lasts)[0].shape == (1, 1, HIDDEN)


def test_names_shapes_and_initial_values_are_torchs() -> None:
    nn.manual_seed(0)
    layer = nn.GRU(40, 25, num_layers=2, bidirectional=True)
    names = [f"{name}_l{k}{way}" for k in (0, 1) for way in ("", "_reverse") for name in
             ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]  # fmt: skip
    state = layer.state_dict()
    assert list(state) == names
    assert state["weight_ih_l0"].shape == (75, 40) and state["weight_ih_l1_reverse"].shape == (75, 50)
    for name, value in state.items():
        assert value.dtype == np.float32 and 0.15 < np.abs(value).max() <= 0.2, name
    assert "bidirectional=True" in repr(layer)


def test_dropout_lies_between_layers_in_training_only() -> None:
    layer = make("LSTM", num_layers=2, dropout=0.5)
    x = draw(T, B, FEATURES)
    assert not np.allclose(layer(x)[0].data, layer(x)[0].data)
    layer.eval()
    np.testing.assert_array_equal(layer(x)[0].data, layer(x)[0].data)
    single = make("LSTM", dropout=0.5)
    np.testing.assert_array_equal(single(x)[0].data, single(x)[0].data)


def test_no_graph_without_grad() -> None:
    with no_grad():
        out, (h, c) = make("LSTM")(draw(T, B, FEATURES))
    assert not (out.requires_grad or h.requires_grad or c.requires_grad)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.LSTM(0, 3), "LSTM needs positive sizes"),
        (lambda: nn.RNN(2, 3, nonlinearity="gelu"), "nonlinearity must be 'tanh' or 'relu'"),
        (lambda: nn.GRU(2, 3, dropout=1.5), r"dropout must lie in \[0, 1\]"),
        (lambda: make("LSTM")(draw(T, B, 9)), r"LSTM: input must be \(time, batch, 4\)"),
        (lambda: make("GRU")(draw(T, B, FEATURES), draw(1, 2, HIDDEN)), r"state must have shape \(1, 3, 6\)"),
        (lambda: make("GRU")(draw(T, B, FEATURES), lengths=[1, 2]), "lengths must be 3 integers"),
        (lambda: make("GRU")(draw(T, B, FEATURES), lengths=[1, 2, 6]), r"lengths must lie in \[0, 5\]"),
        (lambda: nn.LSTM(2, 3)(np.ones((4, 1, 2)), (np.zeros((1, 1, 3)),)), r"must be \(h, c\), not 1"),
        (lambda: nn.GRU(2, 3)([[1.0, 2.0]]), "GRU takes a tensor or an array, not list"),
    ],
)  # fmt: skip
def test_misuse_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
