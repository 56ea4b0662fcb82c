"""Recurrent cells: against torch's, and against layers step by step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch_twin import agree, flat, twin

from psframework import nn
from psframework.autograd import tensor
from psframework.errors import ArgumentError

TIME, BATCH, FEATURES, HIDDEN = 5, 3, 4, 6
KINDS = ["RNN", "GRU", "LSTM"]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


def make(kind: str, **options: Any) -> Any:
    nn.manual_seed(0)
    return getattr(nn, kind)(FEATURES, HIDDEN, dtype=np.float64, **options)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"nonlinearity": "relu"}], ids=["plain", "no bias", "relu"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_cells_equal_torchs(kind: str, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    if kind != "RNN":
        options = {name: value for name, value in options.items() if name == "bias"}
    ours = make(f"{kind}Cell", **options)
    theirs = twin(torch, ours, FEATURES, HIDDEN, **options)
    x = tensor(draw(BATCH, FEATURES), requires_grad=True)
    h, c = [tensor(draw(BATCH, HIDDEN, seed=i), requires_grad=True) for i in (1, 2)]
    states = (h, c) if kind == "LSTM" else h
    leaves = tuple(torch.tensor(leaf.data, requires_grad=True) for leaf in flat((x, states)))
    hx = leaves[1:] if kind == "LSTM" else leaves[1]
    agree(ours, theirs, (x, states), leaves, ours(x, states), theirs(leaves[0], hx))


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_its_cell_step_by_step(kind: str) -> None:
    layer, cell = make(kind), make(f"{kind}Cell")
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    x, states = draw(TIME, BATCH, FEATURES), None
    out, last = layer(x)
    for t in range(TIME):
        states = cell(x[t], states)
        np.testing.assert_allclose(out.data[t], flat(states)[0].data, atol=1e-12)
    for end, state in zip(flat(last), flat(states), strict=True):
        np.testing.assert_allclose(end.data[0], state.data, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_one_example_needs_no_batch_axis(kind: str) -> None:
    cell, x = make(f"{kind}Cell"), draw(BATCH, FEATURES)
    expected = cell(x, cell(x))
    for b in range(BATCH):
        for state, wanted in zip(flat(cell(x[b], cell(x[b]))), flat(expected), strict=True):
            np.testing.assert_allclose(state.data, wanted.data[b], atol=1e-14)


def test_names_and_initial_values_are_torchs() -> None:
    state = nn.GRUCell(40, 25).state_dict()
    assert list(state) == ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    assert [value.shape for value in state.values()] == [(75, 40), (75, 25), (75,), (75,)]
    assert all(0.15 < np.abs(value).max() <= 0.2 for value in state.values())
    assert repr(nn.LSTMCell(2, 3, bias=False)) == "LSTMCell(2, 3, bias=False)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.GRUCell(3, 0), "GRUCell needs positive sizes"),
        (lambda: nn.RNNCell(2, 3, nonlinearity="gelu"), "nonlinearity must be 'tanh' or 'relu'"),
        (lambda: make("LSTMCell")(draw(2, 3, FEATURES)), r"input must be \(batch, 4\)"),
        (lambda: make("GRUCell")(draw(2, FEATURES), draw(3, HIDDEN)), r"state must have shape \(2, 6\)"),
    ],
)
def test_misuse_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
