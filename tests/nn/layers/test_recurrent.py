"""Recurrent layers and cells: against torch's, variable lengths, names, shapes, misuse."""

from typing import Any

import numpy as np
import pytest

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


def flat(result: Any) -> list[Any]:
    """The tensors in nested tuples."""
    return [t for part in result for t in flat(part)] if isinstance(result, tuple) else [result]


def weighted(results: list[Any]) -> Any:
    """One number that every element takes part in, for tensors of ours and torch's."""
    total = 0
    for i, result in enumerate(results):
        weights = draw(*result.shape, seed=i)
        total = (
            result * (weights if hasattr(result, "numpy") is False else like(weights, result))
        ).sum() + total
    return total


def like(array: np.ndarray, sample: Any) -> Any:
    return sample.new_tensor(array) if hasattr(sample, "new_tensor") else array


def torchs(torch: Any, ours: nn.Module, kind: str, **options: Any) -> Any:
    """torch's module with the same weights; loading fails if names or shapes differ."""
    theirs = getattr(torch.nn, kind)(FEATURES, HIDDEN, dtype=torch.float64, **options)
    theirs.load_state_dict({name: torch.tensor(value) for name, value in ours.state_dict().items()})
    return theirs


def agree(
    ours: nn.Module, theirs: Any, leaves: list[Any], their_leaves: list[Any], outs: Any, expected: Any
) -> None:
    """Results, and gradients of leaves and parameters, are torch's."""
    for out, wanted in zip(flat(outs), flat(expected), strict=True):
        np.testing.assert_allclose(out.data, wanted.detach().numpy(), rtol=1e-9, atol=1e-12)
    weighted(flat(outs)).backward()
    weighted(flat(expected)).backward()
    for leaf, theirs_leaf in zip(leaves, their_leaves, strict=True):
        np.testing.assert_allclose(leaf.grad, theirs_leaf.grad.numpy(), rtol=1e-9, atol=1e-11)
    for name, parameter in ours.named_parameters():
        wanted = theirs.get_parameter(name).grad.numpy()
        np.testing.assert_allclose(parameter.grad, wanted, rtol=1e-9, atol=1e-11, err_msg=name)


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
    theirs = torchs(torch, ours, kind, **options)
    first = options.get("batch_first", False)
    x = tensor(draw(B, T, FEATURES) if first else draw(T, B, FEATURES), requires_grad=True)
    count = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    states = states_of(kind, count, B, HIDDEN)
    leaves = flat((x, states))
    their_leaves = [torch.tensor(leaf.data, requires_grad=True) for leaf in leaves]
    given, hx = their_leaves[0], tuple(their_leaves[1:]) if kind == "LSTM" else their_leaves[1]
    if lengths is None:
        expected = theirs(given, hx)
    else:
        tools = torch.nn.utils.rnn
        packed = tools.pack_padded_sequence(given, torch.tensor(lengths), first, enforce_sorted=False)
        out, ends = theirs(packed, hx)
        expected = (tools.pad_packed_sequence(out, first, total_length=T)[0], ends)
    agree(ours, theirs, leaves, their_leaves, ours(x, states, lengths=lengths), expected)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell"])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_equal_torchs(kind: str, bias: bool) -> None:
    torch = pytest.importorskip("torch")
    ours = make(kind, bias=bias)
    theirs = torchs(torch, ours, kind, bias=bias)
    x, states = tensor(draw(B, FEATURES), requires_grad=True), states_of(kind, B, HIDDEN)
    leaves = flat((x, states))
    their_leaves = [torch.tensor(leaf.data, requires_grad=True) for leaf in leaves]
    hx = tuple(their_leaves[1:]) if kind == "LSTMCell" else their_leaves[1]
    agree(ours, theirs, leaves, their_leaves, ours(x, states), theirs(their_leaves[0], hx))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_is_its_cell_step_by_step(kind: str) -> None:
    layer, cell = make(kind), make(kind + "Cell")
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    x, states = draw(T, B, FEATURES), None
    out, last = layer(x)
    for t in range(T):
        states = cell(x[t], states)
        np.testing.assert_allclose(out.data[t], flat(states)[0].data, atol=1e-12)
    for end, state in zip(flat(last), flat(states), strict=True):
        np.testing.assert_allclose(end.data[0], state.data, atol=1e-12)


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
    cell = make(kind + "Cell")
    assert {state.shape for state in flat(cell(x[0], cell(x[0])))} == {(HIDDEN,)}
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
    assert "bidirectional=True" in repr(layer) and repr(nn.LSTMCell(2, 3)) == "LSTMCell(2, 3)"


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
        (lambda: nn.GRUCell(3, 0), "GRUCell needs positive sizes"),
        (lambda: nn.RNN(2, 3, nonlinearity="gelu"), "nonlinearity must be 'tanh' or 'relu'"),
        (lambda: nn.RNNCell(2, 3, nonlinearity="gelu"), "nonlinearity must be 'tanh' or 'relu'"),
        (lambda: nn.GRU(2, 3, dropout=1.5), r"dropout must lie in \[0, 1\]"),
        (lambda: make("LSTM")(draw(T, B, 9)), r"LSTM: input must be \(time, batch, 4\)"),
        (lambda: make("GRU")(draw(T, B, FEATURES), draw(1, 2, HIDDEN)), r"state must have shape \(1, 3, 6\)"),
        (lambda: make("LSTMCell")(draw(T, B, FEATURES)), r"input must be \(batch, 4\)"),
        (lambda: make("GRU")(draw(T, B, FEATURES), lengths=[1, 2]), "lengths must be 3 integers"),
        (lambda: make("GRU")(draw(T, B, FEATURES), lengths=[1, 2, 6]), r"lengths must lie in \[0, 5\]"),
    ],
)  # fmt: skip
def test_misuse_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
