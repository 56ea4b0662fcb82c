"""Long short-term memory (Hochreiter and Schmidhuber, 1997; with forget gates, Gers et al., 2000)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from psframework import backend
from psframework.autograd.ops.recurrent import Lengths, Sweep, tensors
from psframework.autograd.record import constant, guarded, record_many, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array


class _Kept(NamedTuple):
    """What the backward reads.

    Attributes:
        gates: (4, time, batch, hidden).
        hs, cs: states, (time + 1, batch, hidden).
        tanhs: of the states c after each step, (time, batch, hidden).
    """

    gates: Array
    hs: Array
    cs: Array
    tanhs: Array


@guarded("lstm")
def lstm(
    input: Tensor | Array,
    weight_ih: Tensor | Array,
    weight_hh: Tensor | Array,
    bias_ih: Tensor | Array | None = None,
    bias_hh: Tensor | Array | None = None,
    h: Tensor | Array | None = None,
    c: Tensor | Array | None = None,
    *,
    reverse: bool = False,
    lengths: Lengths = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer and direction of an LSTM over a whole sequence, as torch computes it.

    Args:
        input: (time, batch, features), floating. 16-bit floats are computed in float32.
        weight_ih: (4 * hidden, features): input, forget, cell and output gate.
        weight_hh: (4 * hidden, hidden).
        bias_ih: (4 * hidden,), or None.
        bias_hh: likewise; both or neither.
        h: (batch, hidden) state before the first step; zeros if None.
        c: likewise.
        reverse: go from the last time step to the first.
        lengths: (batch,) how many steps of each sequence are real: padding leaves the state as it is, and its
            output is zero. None for all.

    Returns:
        Outputs (time, batch, hidden), and the states h and c (batch, hidden) after the last step.

    Raises:
        ArgumentError: shapes or dtypes that do not fit.
    """
    inputs = tensors("lstm", input, weight_ih, weight_hh, bias_ih, bias_hh, h, c)
    sweep = Sweep("lstm", 4, inputs, reverse, lengths)
    kept = _forward(sweep)
    results = (sweep.output(kept.hs), sweep.last(kept.hs), sweep.last(kept.cs))
    if not recording(*inputs):
        return constant(results[0]), constant(results[1]), constant(results[2])

    def rule(gradients: tuple[Array | None, ...]) -> Sequence[Array | None]:
        return _backward(sweep, kept, *gradients)

    y, h_n, c_n = record_many("lstm", results, rule, inputs, inputs[:3], saves_output=True)
    return y, h_n, c_n


def _forward(sweep: Sweep) -> _Kept:
    xp, weight = sweep.xp, sweep.recurrent_weight()
    gates = sweep.from_input(sweep.bias())
    hs, cs = sweep.places(sweep.states[0]), sweep.places(sweep.states[1])
    tanhs, scratch = xp.empty_like(hs[1:]), sweep.scratch()
    # sigmoid(x) is (tanh(x / 2) + 1) / 2: with factors of 1 for the cell's gate, one tanh serves all four.
    factor = backend.array_like([0.5, 0.5, 1, 0.5], gates, sweep.wide).reshape(4, 1, 1)
    summand = 1 - factor
    for t, before, after in sweep.order:
        now = gates[:, t]
        now += xp.matmul(hs[before], weight, out=scratch)
        now *= factor
        xp.tanh(now, out=now)
        now *= factor
        now += summand
        i, f, g, o = now
        c, tanh = cs[after], tanhs[t]
        xp.multiply(f, cs[before], out=c)
        c += xp.multiply(i, g, out=scratch[0])
        sweep.hold(cs, t, before, after)
        xp.tanh(c, out=tanh)
        xp.multiply(o, tanh, out=hs[after])
        sweep.hold(hs, t, before, after)
    return _Kept(gates, hs, cs, tanhs)


def _backward(
    sweep: Sweep, kept: _Kept, dy: Array | None, dh: Array | None, dc: Array | None
) -> Sequence[Array | None]:
    multiply = sweep.xp.multiply
    slopes, through, forget = _coefficients(sweep, kept)
    dy, dh, dc = sweep.incoming(dy), sweep.seed(dh), sweep.seed(dc)
    scratch = sweep.scratch()
    for t, _, _ in reversed(sweep.order):
        if dy is not None:
            dh += dy[t]
        now = slopes[:, t]
        multiply(now[3], dh, out=now[3])
        dc += multiply(dh, through[t], out=scratch[0])
        multiply(now[:3], dc, out=now[:3])
        dc *= forget[t]
        sweep.step_back(now, dh, t, scratch)
    gates = list(slopes)
    return sweep.gradients(gates, gates, kept.hs, (dh, dc))


def _coefficients(sweep: Sweep, kept: _Kept) -> tuple[Array, Array, Array]:
    """What the backward multiplies by, for all steps at once.

    Returns:
        For each gate the factor from dc (for the output gate: dh) to its gradient, (4, time, batch, hidden);
        the factor from dh to dc; and the one from dc to that of the step before.
    """
    xp, (i, f, g, o), tanhs = sweep.xp, kept.gates, kept.tanhs
    slopes = kept.gates * kept.gates
    xp.subtract(kept.gates[:2], slopes[:2], out=slopes[:2])  # the sigmoid's derivative is s - s * s
    xp.subtract(1, slopes[2], out=slopes[2])
    xp.subtract(o, slopes[3], out=slopes[3])
    for slope, factor in zip(slopes, (g, sweep.befores(kept.cs), i, tanhs)):
        xp.multiply(slope, factor, out=slope)
    through = tanhs * tanhs
    xp.subtract(1, through, out=through)
    through *= o
    if sweep.held is not None:
        f = xp.where(sweep.held, 1, f).astype(f.dtype, copy=False)
        sweep.silence(slopes)
        sweep.silence(through)
    return slopes, through, f
