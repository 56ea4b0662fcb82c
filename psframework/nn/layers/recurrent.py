"""Recurrent layers over whole sequences: RNN, GRU and LSTM, as torch's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from psframework.autograd import Tensor
from psframework.autograd.ops.gru import gru
from psframework.autograd.ops.join import concatenate, stack
from psframework.autograd.ops.lstm import lstm
from psframework.autograd.ops.recurrent import Lengths
from psframework.autograd.ops.rnn import rnn
from psframework.autograd.ops.shape import swapaxes, unsqueeze
from psframework.autograd.record import as_tensor
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import functional as F
from psframework.nn import init
from psframework.nn.making import empty
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter

Operand: TypeAlias = Tensor | Array
Results: TypeAlias = tuple[Tensor, ...]


class _Recurrent(Module):
    """Layers of one kind, each over the whole output of the one below, in one direction or in both."""

    _gates: ClassVar[int]
    _states: ClassVar[int] = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: Any = None,
    ):
        kind = type(self).__name__
        if min(input_size, hidden_size, num_layers) < 1:
            raise ArgumentError(
                f"{kind} needs positive sizes, not {input_size}, {hidden_size} and {num_layers} layers"
            )
        if not 0 <= dropout <= 1:
            raise ArgumentError(f"{kind}: dropout must lie in [0, 1], not {dropout}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, dropout
        self.bidirectional = bidirectional
        rows, directions = self._gates * hidden_size, 1 + bidirectional
        for layer in range(num_layers):
            features = hidden_size * directions if layer else input_size
            for suffix in self._suffixes(layer):
                shapes: dict[str, tuple[int, ...]] = {
                    "weight_ih": (rows, features),
                    "weight_hh": (rows, hidden_size),
                }
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {}
                for name, shape in shapes.items():
                    setattr(self, name + suffix, Parameter(empty(shape, dtype)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new initial values."""
        reset_uniform(self, self.hidden_size)

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: 1 + self.bidirectional]

    def _operands(self, suffix: str) -> list[Parameter | None]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return [getattr(self, name + suffix, None) for name in names]

    def _op(self, x: Operand, weights: Any, states: Any, **how: Any) -> Results:
        raise NotImplementedError

    def _run(self, x: Operand, states: Sequence[Operand] | None, lengths: Lengths) -> Results:
        """The output, and the last value of each state."""
        single = as_tensor(x, type(self).__name__).ndim == 2
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            raise ArgumentError(
                f"{type(self).__name__}: input must be (time, batch, {self.input_size}), with batch first if "
                f"batch_first, or (time, {self.input_size}), not {x.shape}"
            )
        x = unsqueeze(x, 1) if single else swapaxes(x, 0, 1) if self.batch_first else x
        firsts = self._first_states(states, x.shape[1], single)
        lasts: list[Results] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            outs = []
            for suffix in self._suffixes(layer):
                first = [None if state is None else state[len(lasts)] for state in firsts]
                how = {"reverse": suffix.endswith("reverse"), "lengths": lengths}
                out, *last = self._op(x, self._operands(suffix), first, **how)
                outs.append(out)
                lasts.append(tuple(last))
            x = out = concatenate(outs, -1) if self.bidirectional else outs[0]
        ends = [stack(states) for states in zip(*lasts)]
        if single:
            return out[:, 0], *[end[:, 0] for end in ends]
        return swapaxes(out, 0, 1) if self.batch_first else out, *ends

    def _first_states(self, states: Sequence[Operand] | None, batch: int, single: bool) -> Sequence[Any]:
        if states is None:
            return [None] * self._states
        count = self.num_layers * (1 + self.bidirectional)
        shape = (count, self.hidden_size) if single else (count, batch, self.hidden_size)
        if len(states) != self._states:
            raise ArgumentError(f"{type(self).__name__}: hx must be (h, c), not {len(states)} states")
        for state in states:
            if state.shape != shape:
                raise ArgumentError(
                    f"{type(self).__name__}: a state must have shape {shape}, not {state.shape}"
                )
        return [unsqueeze(state, 1) for state in states] if single else states

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        text = f"{self.input_size}, {self.hidden_size}"
        text += f", num_layers={self.num_layers}" if self.num_layers > 1 else ""
        text += "" if self.bias else ", bias=False"
        text += ", batch_first=True" if self.batch_first else ""
        text += f", dropout={self.dropout}" if self.dropout else ""
        return text + (", bidirectional=True" if self.bidirectional else "")


def reset_uniform(module: Module, hidden_size: int) -> None:
    """torch's initial values of recurrent layers: all uniform within 1 / sqrt(hidden_size)."""
    bound = 1 / math.sqrt(hidden_size)
    for parameter in module.parameters():
        init.uniform_(parameter, -bound, bound)


class RNN(_Recurrent):
    """Elman's recurrent network: h' = tanh(weight_ih @ x + bias_ih + weight_hh @ h + bias_hh).

    Args:
        input_size: features of the input.
        hidden_size: features of the state.
        num_layers: layers on top of each other.
        nonlinearity: "tanh" or "relu".
        bias: whether there are biases.
        batch_first: input and output are (batch, time, features) instead of (time, batch, features). States
            are (layers * directions, batch, hidden) always.
        dropout: probability with which an element of a layer's output (not the last one's) is dropped in
            training.
        bidirectional: go through each sequence both ways; the output has both, forwards first.
        dtype: of the parameters; float32 if None.

    Attributes:
        weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0: of layer 0: (hidden, features), (hidden,
            hidden), and (hidden,) twice; likewise for other layers, and with `_reverse` at the end for the
            way back. All uniform within 1 / sqrt(hidden), as torch's.
    """

    _gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: Any = None,
    ):
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"RNN: nonlinearity must be 'tanh' or 'relu', not {nonlinearity!r}")
        self.nonlinearity = nonlinearity
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype=dtype
        )

    def _op(self, x: Operand, weights: Any, states: Any, **how: Any) -> Results:
        return rnn(x, *weights, *states, nonlinearity=self.nonlinearity, **how)

    def forward(self, x: Operand, hx: Operand | None = None, *, lengths: Lengths = None) -> Results:
        """Applies the layers.

        Args:
            x: (time, batch, input_size), (batch, time, input_size) if `batch_first`, or (time, input_size).
            hx: (layers * directions, batch, hidden_size) state before the first step; zeros if None.
            lengths: (batch,) how many steps of each sequence are real. Padding leaves states as they are,
                and its output is zero: what torch does with a packed sequence. None for all.

        Returns:
            The output, with hidden_size * directions features, and the state after the last step.
        """
        return self._run(x, None if hx is None else [hx], lengths)


class GRU(_Recurrent):
    """Gated recurrent units (Cho et al., 2014), reset after the product as torch's.

    Arguments and attributes are those of `RNN`, without nonlinearity. The weights' rows are three blocks of
    hidden_size: reset gate, update gate, candidate.
    """

    _gates = 3

    def _op(self, x: Operand, weights: Any, states: Any, **how: Any) -> Results:
        return gru(x, *weights, *states, **how)

    def forward(self, x: Operand, hx: Operand | None = None, *, lengths: Lengths = None) -> Results:
        """Applies the layers; arguments and results as `RNN.forward`."""
        return self._run(x, None if hx is None else [hx], lengths)


class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997), without projections.

    Arguments and attributes are those of `RNN`, without nonlinearity. The weights' rows are four blocks of
    hidden_size: input, forget, cell and output gate.
    """

    _gates, _states = 4, 2

    def _op(self, x: Operand, weights: Any, states: Any, **how: Any) -> Results:
        return lstm(x, *weights, *states, **how)

    def forward(
        self, x: Operand, hx: tuple[Operand, Operand] | None = None, *, lengths: Lengths = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Applies the layers.

        Args:
            x: (time, batch, input_size), (batch, time, input_size) if `batch_first`, or (time, input_size).
            hx: the states h and c before the first step, (layers * directions, batch, hidden_size) each;
                zeros if None.
            lengths: (batch,) how many steps of each sequence are real. Padding leaves states as they are,
                and its output is zero: what torch does with a packed sequence. None for all.

        Returns:
            The output, with hidden_size * directions features, and the states (h, c) after the last step.
        """
        out, h, c = self._run(x, hx, lengths)
        return out, (h, c)
