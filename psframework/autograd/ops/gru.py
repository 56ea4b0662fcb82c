"""Gated recurrent unit (Cho et al., 2014), in the variant that resets after the product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from psframework.autograd.ops.recurrent import Lengths, Sweep, sigmoid_, tensors
from psframework.autograd.record import constant, guarded, record_many, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array


class _Kept(NamedTuple):
    """What the backward reads.

    Attributes:
        gates: (3, time, batch, hidden).
        proposals: the candidate's sum over the state, (time, batch, hidden).
        hs: states, (time + 1, batch, hidden).
    """

    gates: Array
    proposals: Array
    hs: Array


@guarded("gru")
def gru(
    input: Tensor | Array,
    weight_ih: Tensor | Array,
    weight_hh: Tensor | Array,
    bias_ih: Tensor | Array | None = None,
    bias_hh: Tensor | Array | None = None,
    h: Tensor | Array | None = None,
    *,
    reverse: bool = False,
    lengths: Lengths = None,
) -> tuple[Tensor, Tensor]:
    """One layer and direction of a GRU over a whole sequence, as torch computes it.

    Args:
        input: (time, batch, features), floating. 16-bit floats are computed in float32.
        weight_ih: (3 * hidden, features): reset gate, update gate, candidate.
        weight_hh: (3 * hidden, hidden).
        bias_ih: (3 * hidden,), or None.
        bias_hh: likewise; both or neither.
        h: (batch, hidden) state before the first step; zeros if None.
        reverse: go from the last time step to the first.
        lengths: (batch,) how many steps of each sequence are real: padding leaves the state as it is, and its
            output is zero. None for all.

    Returns:
        Outputs (time, batch, hidden), and the state (batch, hidden) after the last step.

    Raises:
        ArgumentError: shapes or dtypes that do not fit.
    """
    inputs = tensors("gru", input, weight_ih, weight_hh, bias_ih, bias_hh, h)
    sweep = Sweep("gru", 3, inputs, reverse, lengths)
    kept = _forward(sweep)
    results = (sweep.output(kept.hs), sweep.last(kept.hs))
    if not recording(*inputs):
        return constant(results[0]), constant(results[1])

    def rule(gradients: tuple[Array | None, ...]) -> Sequence[Array | None]:
        return _backward(sweep, kept, *gradients)

    y, h_n = record_many("gru", results, rule, inputs, inputs[:3], saves_output=True)
    return y, h_n


def _forward(sweep: Sweep) -> _Kept:
    xp, weight, bias = sweep.xp, sweep.recurrent_weight(), sweep.b_hh
    gates = sweep.from_input(sweep.b_ih)
    hs = sweep.places(sweep.states[0])
    proposals, scratch = xp.empty_like(hs[1:]), sweep.scratch()
    for t, before, after in sweep.order:
        now, h, new = gates[:, t], hs[before], hs[after]
        xp.matmul(h, weight, out=scratch)
        if bias is not None:
            scratch += bias
        both, n = now[:2], now[2]
        both += scratch[:2]
        r, z = sigmoid_(xp, both)
        proposals[t] = scratch[2]
        n += xp.multiply(r, scratch[2], out=scratch[2])
        xp.tanh(n, out=n)
        xp.subtract(h, n, out=new)
        new *= z
        new += n
        sweep.hold(hs, t, before, after)
    return _Kept(gates, proposals, hs)


def _backward(sweep: Sweep, kept: _Kept, dy: Array | None, dh: Array | None) -> Sequence[Array | None]:
    multiply = sweep.xp.multiply
    slopes, keep = _coefficients(sweep, kept)
    dy, dh = sweep.incoming(dy), sweep.seed(dh)
    scratch = sweep.scratch()
    for t, _, _ in reversed(sweep.order):
        if dy is not None:
            dh += dy[t]
        now = slopes[:, t]
        multiply(now, dh, out=now)
        kept_part = dh * keep[t]
        sweep.step_back(now[:3], dh, t, scratch)
        dh += kept_part
    r, z, proposal, n = slopes
    return sweep.gradients([r, z, n], [r, z, proposal], kept.hs, (dh,))


def _coefficients(sweep: Sweep, kept: _Kept) -> tuple[Array, Array]:
    """What the backward multiplies by, for all steps at once.

    Returns:
        The factors from dh to the gradients of reset gate, update gate, candidate's sum over the state, and
        candidate's sum over the input, (4, time, batch, hidden); and from dh to that of the step before.
    """
    xp, (r, z, n) = sweep.xp, kept.gates
    slopes = xp.empty((4, *r.shape), sweep.wide)
    into_r, into_z, into_proposal, into_n = slopes
    xp.multiply(n, n, out=into_n)
    xp.subtract(1, into_n, out=into_n)
    xp.subtract(1, z, out=into_z)
    into_n *= into_z  # (1 - n * n) * (1 - z)
    into_z *= z
    into_z *= sweep.befores(kept.hs) - n
    xp.multiply(into_n, r, out=into_proposal)
    xp.subtract(1, r, out=into_r)
    into_r *= into_proposal
    into_r *= kept.proposals
    if sweep.held is not None:
        sweep.silence(slopes)
        z = xp.where(sweep.held, 0, z).astype(z.dtype, copy=False)  # `step_back` passes dh on
    return slopes, z
