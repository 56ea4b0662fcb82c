"""The simple recurrent network (Elman, 1990)."""

from __future__ import annotations

from collections.abc import Sequence

from psframework.autograd.ops.recurrent import Lengths, Sweep, tensors
from psframework.autograd.record import constant, guarded, record_many, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


@guarded("rnn")
def rnn(
    input: Tensor | Array,
    weight_ih: Tensor | Array,
    weight_hh: Tensor | Array,
    bias_ih: Tensor | Array | None = None,
    bias_hh: Tensor | Array | None = None,
    h: Tensor | Array | None = None,
    *,
    nonlinearity: str = "tanh",
    reverse: bool = False,
    lengths: Lengths = None,
) -> tuple[Tensor, Tensor]:
    """One layer and direction of a simple recurrent network over a whole sequence, as torch computes it.

    Args:
        input: (time, batch, features), floating. 16-bit floats are computed in float32.
        weight_ih: (hidden, features).
        weight_hh: (hidden, hidden).
        bias_ih: (hidden,), or None.
        bias_hh: likewise; both or neither.
        h: (batch, hidden) state before the first step; zeros if None.
        nonlinearity: "tanh" or "relu".
        reverse: go from the last time step to the first.
        lengths: (batch,) how many steps of each sequence are real: padding leaves the state as it is, and its
            output is zero. None for all.

    Returns:
        Outputs (time, batch, hidden), and the state (batch, hidden) after the last step.

    Raises:
        ArgumentError: shapes or dtypes that do not fit, or another nonlinearity.
    """
    if nonlinearity not in ("tanh", "relu"):
        raise ArgumentError(f"rnn: nonlinearity must be 'tanh' or 'relu', not {nonlinearity!r}")
    inputs = tensors("rnn", input, weight_ih, weight_hh, bias_ih, bias_hh, h)
    sweep = Sweep("rnn", 1, inputs, reverse, lengths)
    hs = _forward(sweep, nonlinearity)
    results = (sweep.output(hs), sweep.last(hs))
    if not recording(*inputs):
        return constant(results[0]), constant(results[1])

    def rule(gradients: tuple[Array | None, ...]) -> Sequence[Array | None]:
        return _backward(sweep, nonlinearity, hs, *gradients)

    y, h_n = record_many("rnn", results, rule, inputs, inputs[:3], saves_output=True)
    return y, h_n


def _forward(sweep: Sweep, nonlinearity: str) -> Array:
    xp, weight = sweep.xp, sweep.recurrent_weight()[0]
    (sums,) = sweep.from_input(sweep.bias())
    hs = sweep.places(sweep.states[0])
    for t, before, after in sweep.order:
        new = xp.matmul(hs[before], weight, out=hs[after])
        new += sums[t]
        if nonlinearity == "tanh":
            xp.tanh(new, out=new)
        else:
            xp.maximum(new, 0, out=new)
        sweep.hold(hs, t, before, after)
    return hs


def _backward(
    sweep: Sweep, nonlinearity: str, hs: Array, dy: Array | None, dh: Array | None
) -> Sequence[Array | None]:
    xp, after = sweep.xp, sweep.afters(hs)
    slopes = (1 - after * after if nonlinearity == "tanh" else (after > 0).astype(sweep.wide))[None]
    sweep.silence(slopes)
    dy, dh = sweep.incoming(dy), sweep.seed(dh)
    scratch = sweep.scratch()
    for t, _, _ in reversed(sweep.order):
        if dy is not None:
            dh += dy[t]
        now = slopes[:, t]
        xp.multiply(now, dh, out=now)
        sweep.step_back(now, dh, t, scratch)
    gates = [slopes[0]]
    return sweep.gradients(gates, gates, hs, (dh,))
