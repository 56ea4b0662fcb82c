"""Recurrent cells, for single steps: RNNCell, GRUCell and LSTMCell, as torch's."""

from __future__ import annotations

from typing import Any, ClassVar

from psframework.autograd import Tensor
from psframework.autograd.ops.gru import gru
from psframework.autograd.ops.lstm import lstm
from psframework.autograd.ops.rnn import rnn
from psframework.autograd.ops.shape import unsqueeze
from psframework.errors import ArgumentError
from psframework.nn.layers.recurrent import Operand, Results, reset_uniform
from psframework.nn.making import empty
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter


class _Cell(Module):
    """One step of one layer."""

    _gates: ClassVar[int]
    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, *, dtype: Any = None):
        if min(input_size, hidden_size) < 1:
            raise ArgumentError(
                f"{type(self).__name__} needs positive sizes, not {input_size} and {hidden_size}"
            )
        self.input_size, self.hidden_size = input_size, hidden_size
        rows = self._gates * hidden_size
        self.weight_ih = Parameter(empty((rows, input_size), dtype))
        self.weight_hh = Parameter(empty((rows, hidden_size), dtype))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty(rows, dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new initial values."""
        reset_uniform(self, self.hidden_size)

    def _step(self, op: Any, x: Operand, *states: Operand | None, **how: Any) -> Results:
        """The states after the step."""
        if x.ndim not in (1, 2):
            raise ArgumentError(
                f"{type(self).__name__}: input must be (batch, {self.input_size}) or ({self.input_size},), "
                f"not {x.shape}"
            )
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        if x.ndim == 2:
            return tuple(op(unsqueeze(x, 0), *weights, *states, **how)[1:])
        rows = [None if state is None else unsqueeze(state, 0) for state in states]
        return tuple([end[0] for end in op(unsqueeze(unsqueeze(x, 0), 0), *weights, *rows, **how)[1:]])

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"{self.input_size}, {self.hidden_size}" + (", bias=False" if self.bias_ih is None else "")


class RNNCell(_Cell):
    """A step of `RNN`.

    Args:
        input_size: features of the input.
        hidden_size: features of the state.
        bias: whether there are biases.
        nonlinearity: "tanh" or "relu".
        dtype: of the parameters; float32 if None.

    Attributes:
        weight_ih, weight_hh: (hidden_size, input_size) and (hidden_size, hidden_size).
        bias_ih, bias_hh: (hidden_size,) each; or None.
    """

    _gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        *,
        dtype: Any = None,
    ):
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"RNNCell: nonlinearity must be 'tanh' or 'relu', not {nonlinearity!r}")
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, bias, dtype=dtype)

    def forward(self, x: Operand, hx: Operand | None = None) -> Tensor:
        """The state (batch, hidden_size) after input `x` (batch, input_size); without batch too."""
        return self._step(rnn, x, hx, nonlinearity=self.nonlinearity)[0]


class GRUCell(_Cell):
    """A step of `GRU`: as `RNNCell` without nonlinearity, with blocks of rows as `GRU` has them."""

    _gates = 3

    def forward(self, x: Operand, hx: Operand | None = None) -> Tensor:
        """The state (batch, hidden_size) after input `x` (batch, input_size); without batch too."""
        return self._step(gru, x, hx)[0]


class LSTMCell(_Cell):
    """A step of `LSTM`: as `RNNCell` without nonlinearity, with blocks of rows as `LSTM` has them."""

    _gates = 4

    def forward(self, x: Operand, hx: tuple[Operand, Operand] | None = None) -> tuple[Tensor, Tensor]:
        """The states h and c (batch, hidden_size) after input `x` (batch, input_size); without batch too."""
        h, c = self._step(lstm, x, *(hx or (None, None)))
        return h, c
