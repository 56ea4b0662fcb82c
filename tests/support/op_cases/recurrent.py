"""Recurrent layers over short sequences: all weights, states, ways, and lengths."""

from functools import partial

import numpy as np
from op_case import Case

from psframework.autograd.ops.gru import gru
from psframework.autograd.ops.lstm import lstm
from psframework.autograd.ops.rnn import rnn

T, B, FEATURES, HIDDEN = 3, 2, 2, 2


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng((1, *shape)).standard_normal(shape)


def operands(gates: int, states: int) -> list[np.ndarray]:
    rows = gates * HIDDEN
    weights = [draw(rows, FEATURES), draw(rows, HIDDEN), draw(rows), draw(rows) / 2]
    return [draw(T, B, FEATURES), *weights, *[draw(B, HIDDEN) * (i + 1) / 2 for i in range(states)]]


def cases(name: str, op, gates: int, states: int) -> list[Case]:
    full = operands(gates, states)
    padded = lambda *inputs: op(*inputs, lengths=[3, 1])  # noqa: E731
    return [
        Case(name, op, full),
        Case(f"{name}: reverse", partial(op, reverse=True), full),
        Case(f"{name}: padded", padded, full),
        Case(f"{name}: reverse and padded", partial(op, reverse=True, lengths=[2, 3]), full),
        Case(f"{name}: zero state, no bias", op, full[:3]),
        Case(f"{name}: empty batch", op, [full[0][:, :0], *full[1:5]]),
        Case(f"{name}: no steps", op, [full[0][:0], *full[1:]]),
    ]


CASES = [
    *cases("rnn", rnn, 1, 1),
    Case("rnn: relu", partial(rnn, nonlinearity="relu"), operands(1, 1)),
    *cases("gru", gru, 3, 1),
    *cases("lstm", lstm, 4, 2),
]
