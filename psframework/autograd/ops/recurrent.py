"""What recurrent layers share: one layer and direction over a whole sequence is one node of the graph.

Products with the inputs do not depend on the state, so they are made for all time steps at once, and so is
everything in the backward that does not depend on the gradient of the state: the loops over time do the rest,
and one product over all steps gives each weight its gradient. Arrays of gates lie as (gate, time, batch,
hidden): every gate of a step is one contiguous block, and no product needs a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from psframework import backend
from psframework.autograd.record import as_tensor
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

Lengths: TypeAlias = Tensor | Array | Sequence[int] | None
Inputs: TypeAlias = tuple[Tensor | None, ...]


def sigmoid_(xp: Any, x: Array) -> Array:
    """The logistic function in place, by tanh: one pass that cannot overflow."""
    x *= 0.5
    xp.tanh(x, out=x)
    x += 1
    x *= 0.5
    return x


def tensors(name: str, *operands: Tensor | Array | None) -> Inputs:
    """The operands as tensors."""
    return tuple([None if operand is None else as_tensor(operand, name) for operand in operands])


class Sweep:
    """One layer's operands, checked and ready to compute with, and the order of its time steps.

    Args:
        name: of the operation.
        gates: how many blocks of `hidden` rows the weights have.
        inputs: (time, batch, features); weight_ih (gates * hidden, features), weight_hh (gates * hidden,
            hidden), two biases (gates * hidden,) or None; states (batch, hidden) each, or None for zeros.
        reverse: go from the last time step to the first.
        lengths: (batch,) how many time steps of each sequence are real; None for all.

    Attributes:
        x: (time * batch, features).
        w_ih, w_hh: (gates, hidden, ...).
        b_ih, b_hh: (gates, 1, hidden), or None.
        states: (batch, hidden) each.
        held: (time, batch, 1), True where a step is padding and the state stays; or None.
        order: (time step, place of the state before it, place of the state after it) for each step.
    """

    def __init__(self, name: str, gates: int, inputs: Inputs, reverse: bool, lengths: Lengths) -> None:
        self.name, self.gates, self.reverse = name, gates, reverse
        self._check(inputs)
        arrays = [None if value is None else backend.widen(value._data) for value in inputs]
        self._wanted = [
            value.dtype if value is not None and value._requires_grad else None for value in inputs
        ]
        x, w_ih, w_hh, b_ih, b_hh = arrays[:5]
        assert x is not None and w_ih is not None and w_hh is not None
        self.xp = backend.xp(x)
        self.dtype = np.result_type(*(value.dtype for value in inputs if value is not None))
        self.wide = np.result_type(*(value.dtype for value in arrays if value is not None))
        self.steps, self.batch, features = x.shape
        self.hidden = w_hh.shape[1]
        self.x = x.reshape(self.steps * self.batch, features)
        self.w_ih = w_ih.reshape(gates, self.hidden, features)
        self.w_hh = w_hh.reshape(gates, self.hidden, self.hidden)
        self.b_ih, self.b_hh = [b if b is None else b.reshape(gates, 1, self.hidden) for b in (b_ih, b_hh)]
        self.states = [self.zeros(self.batch, self.hidden) if s is None else s for s in arrays[5:]]
        self.held = self._held(lengths)
        places = range(self.steps)
        self.order = [(t, t + 1, t) for t in reversed(places)] if reverse else [(t, t, t + 1) for t in places]

    def _check(self, inputs: Inputs) -> None:
        x, w_ih, w_hh, b_ih, b_hh, *states = inputs
        assert x is not None and w_ih is not None and w_hh is not None
        for value in inputs:
            if value is not None and not backend.is_floating(value.dtype):
                raise ArgumentError(
                    f"{self.name}: dtype {value.dtype} is not floating: convert with .astype(np.float32)"
                )
        if x.ndim != 3:
            raise ArgumentError(f"{self.name}: input must be (time, batch, features), not {x.shape}")
        if w_hh.ndim != 2 or w_hh.shape[0] != self.gates * w_hh.shape[1]:
            raise ArgumentError(
                f"{self.name}: weight_hh must be ({self.gates} * hidden, hidden), not {w_hh.shape}"
            )
        if (b_ih is None) != (b_hh is None):
            raise ArgumentError(f"{self.name}: give both biases or neither")
        rows, hidden = w_hh.shape
        wanted = [
            ("weight_ih", w_ih, (rows, x.shape[2])),
            ("bias_ih", b_ih, (rows,)),
            ("bias_hh", b_hh, (rows,)),
        ]
        wanted += [("initial state", state, (x.shape[1], hidden)) for state in states]
        for name, value, shape in wanted:
            if value is not None and value.shape != shape:
                raise ArgumentError(f"{self.name}: {name} must have shape {shape}, not {value.shape}")

    def _held(self, lengths: Lengths) -> Array | None:
        if lengths is None:
            return None
        counts = np.asarray(backend.asnumpy(lengths._data if isinstance(lengths, Tensor) else lengths))
        if counts.shape != (self.batch,) or (counts.size and counts.dtype.kind not in "iu"):
            raise ArgumentError(
                f"{self.name}: lengths must be {self.batch} integers, one a sequence, "
                f"not {counts.dtype} of shape {counts.shape}"
            )
        if counts.size and not 0 <= counts.min() <= counts.max() <= self.steps:
            raise ArgumentError(
                f"{self.name}: lengths must lie in [0, {self.steps}], not in [{counts.min()}, {counts.max()}]"
            )
        held = np.arange(self.steps)[:, None, None] >= counts[:, None]
        return backend.to_device(held, backend.device_of(self.x))

    def zeros(self, *shape: int) -> Array:
        """Zeros on the operands' device, in the dtype to compute in."""
        return cast(Array, self.xp.zeros(shape, self.wide))

    def scratch(self) -> Array:
        """(gates, batch, hidden), for the results of one step's products."""
        return cast(Array, self.xp.empty((self.gates, self.batch, self.hidden), self.wide))

    def from_input(self, bias: Array | None) -> Array:
        """(gates, time, batch, hidden): what the inputs, and a bias, add to each gate."""
        total = self.xp.matmul(self.x, self.w_ih.transpose(0, 2, 1))
        if bias is not None:
            total += bias
        return cast(Array, total.reshape(self.gates, self.steps, self.batch, self.hidden))

    def bias(self) -> Array | None:
        """The sum of both biases."""
        return None if self.b_ih is None or self.b_hh is None else self.b_ih + self.b_hh

    def recurrent_weight(self) -> Array:
        """(gates, hidden before, hidden after), contiguous: it is multiplied once a step."""
        return cast(Array, self.xp.ascontiguousarray(self.w_hh.transpose(0, 2, 1)))

    def places(self, first: Array) -> Array:
        """(time + 1, batch, hidden) for a state before and after each step, with the first one filled in."""
        states = self.xp.empty((self.steps + 1, self.batch, self.hidden), self.wide)
        states[-1 if self.reverse else 0] = first
        return cast(Array, states)

    def hold(self, states: Array, t: int, before: int, after: int) -> None:
        """Keeps the state of those sequences for which step `t` is padding."""
        if self.held is not None:
            self.xp.copyto(states[after], states[before], where=self.held[t])

    def befores(self, states: Array) -> Array:
        """The state before each step."""
        return states[1:] if self.reverse else states[:-1]

    def afters(self, states: Array) -> Array:
        """The state after each step."""
        return states[:-1] if self.reverse else states[1:]

    def last(self, states: Array) -> Array:
        """(batch, hidden): the state after all steps, in the result's dtype and memory of its own."""
        return cast(Array, states[0 if self.reverse else -1].astype(self.dtype))

    def output(self, states: Array) -> Array:
        """(time, batch, hidden): the state after each step, zero where it is padding."""
        out = self.afters(states)
        if self.held is not None:
            out = self.xp.where(self.held, 0, out).astype(self.wide, copy=False)
        return out.astype(self.dtype, copy=False)

    def silence(self, coefficients: Array) -> None:
        """Sets (..., time, batch, hidden) to zero where a step is padding."""
        if self.held is not None:
            self.xp.copyto(coefficients, 0, where=self.held)

    def incoming(self, gradient: Array | None) -> Array | None:
        """The output's gradient, to compute with: padding has none."""
        if gradient is None or self.held is None:
            return None if gradient is None else backend.widen(gradient)
        return cast(Array, self.xp.where(self.held, 0, backend.widen(gradient)))

    def seed(self, gradient: Array | None) -> Array:
        """(batch, hidden): a last state's gradient, to add to."""
        return self.zeros(self.batch, self.hidden) if gradient is None else gradient.astype(self.wide)

    def step_back(self, gates: Array, dh: Array, t: int, scratch: Array) -> None:
        """Turns `dh`, the gradient of the state after step `t`, into that of the state before it.

        Args:
            gates: (gates, batch, hidden) gradients of the gates' sums over the state.
            dh: (batch, hidden), changed in place.
            t: the time step.
            scratch: as `gates`, overwritten.
        """
        passing = None if self.held is None else dh * self.held[t]
        self.xp.matmul(gates, self.w_hh, out=scratch)
        scratch.sum(axis=0, out=dh)
        if passing is not None:
            dh += passing

    def gradients(
        self, inner: Sequence[Array], outer: Sequence[Array], hs: Array, states: Sequence[Array]
    ) -> list[Array | None]:
        """Gradients of the inputs, in their order.

        Args:
            inner: for each gate the gradient of its sum over the inputs, (time, batch, hidden).
            outer: likewise of its sum over the state.
            hs: the states, as `places` has them.
            states: gradients of the initial states.
        """
        rows = (self.steps * self.batch, self.hidden)
        flat_inner = [gate.reshape(rows) for gate in inner]
        flat_outer = flat_inner if outer is inner else [gate.reshape(rows) for gate in outer]
        x, w_ih, w_hh, b_ih, b_hh, *_ = [dtype is not None for dtype in self._wanted]
        into_b_ih = self._into_bias(flat_inner) if b_ih or (b_hh and outer is inner) else None
        found = [
            self._into_input(flat_inner) if x else None,
            self._into_weight(flat_inner, self.x) if w_ih else None,
            self._into_weight(flat_outer, self.befores(hs).reshape(rows)) if w_hh else None,
            into_b_ih,
            into_b_ih if outer is inner else self._into_bias(flat_outer) if b_hh else None,
            *states,
        ]
        return [
            None if array is None or dtype is None else array.astype(dtype, copy=False)
            for array, dtype in zip(found, self._wanted)
        ]

    def _into_input(self, gates: Sequence[Array]) -> Array:
        total: Array = gates[0] @ self.w_ih[0]
        for gate, weight in zip(gates[1:], self.w_ih[1:]):
            total += gate @ weight
        return total.reshape(self.steps, self.batch, total.shape[1])

    def _into_weight(self, gates: Sequence[Array], rows: Array) -> Array:
        # Of its own, not a view: then it becomes the weight's gradient without a copy.
        total = self.xp.empty((self.gates * self.hidden, rows.shape[1]), self.wide)
        for gate, part in zip(gates, total.reshape(self.gates, self.hidden, rows.shape[1])):
            self.xp.matmul(gate.T, rows, out=part)
        return cast(Array, total)

    def _into_bias(self, gates: Sequence[Array]) -> Array:
        total = self.xp.empty(self.gates * self.hidden, self.wide)
        for gate, part in zip(gates, total.reshape(self.gates, self.hidden)):
            gate.sum(axis=0, out=part)
        return cast(Array, total)
