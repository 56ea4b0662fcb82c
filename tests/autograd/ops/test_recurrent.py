"""What recurrent operations share: checks, padding, gradients only where wanted."""

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframework.autograd import Tensor, tensor
from psframework.autograd.ops.gru import gru
from psframework.autograd.ops.lstm import lstm
from psframework.autograd.ops.recurrent import Sweep, sigmoid_, tensors
from psframework.autograd.ops.rnn import rnn
from psframework.errors import ArgumentError, AutogradError

OPS = {"rnn": (rnn, 1), "gru": (gru, 3), "lstm": (lstm, 4)}
every_op = pytest.mark.parametrize("name", OPS)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape)


def operands(name: str, dtype: object = np.float64) -> list[Tensor]:
    """Input and weights, all requiring grad: time 4, batch 3, features 2, hidden 5."""
    rows = OPS[name][1] * 5
    shapes = [(4, 3, 2), (rows, 2), (rows, 5), (rows,), (rows,)]
    return [tensor(draw(*shape).astype(dtype), requires_grad=True) for shape in shapes]


@every_op
def test_backwards_is_forwards_of_the_sequence_turned_round(name: str) -> None:
    op, (x, *weights) = OPS[name][0], operands(name)
    there, *ends = op(x, *weights, reverse=True)
    back, *turned = op(x.data[::-1], *weights)
    np.testing.assert_array_equal(there.data, back.data[::-1])
    for end, other in zip(ends, turned, strict=True):
        np.testing.assert_array_equal(end.data, other.data)


@every_op
def test_a_sequence_of_no_steps_keeps_its_state(name: str) -> None:
    op, (x, *weights) = OPS[name][0], operands(name)
    h = tensor(draw(3, 5), requires_grad=True)
    out, last, *_ = op(x, *weights, h, lengths=[0, 4, 2])
    assert not out.data[:, 0].any() and not out.data[2:, 2].any()
    np.testing.assert_array_equal(last.data[0], h.data[0])
    np.testing.assert_array_equal(last.data[2], out.data[1, 2])
    last[0].sum().backward()
    assert h.grad is not None and x.grad is not None
    np.testing.assert_array_equal(h.grad, [[1] * 5, [0] * 5, [0] * 5])
    assert not x.grad.any()


@every_op
def test_padding_may_hold_anything(name: str) -> None:
    op, (x, *weights) = OPS[name][0], operands(name)
    lengths = np.array([1, 4, 2])
    before, last, *_ = op(x, *weights, lengths=lengths)
    dirty = x.data.copy()
    dirty[np.arange(4)[:, None] >= lengths] = np.nan
    after, other, *_ = op(dirty, *weights, lengths=tensor(lengths))
    np.testing.assert_array_equal(after.data, before.data)
    np.testing.assert_array_equal(other.data, last.data)


@every_op
def test_only_wanted_gradients_are_computed(name: str) -> None:
    op, inputs = OPS[name][0], operands(name)
    op(*inputs)[0].sum().backward()
    assert not np.shares_memory(inputs[3].grad, inputs[4].grad)  # equal for some kinds, yet two arrays
    for i, leaf in enumerate(inputs):
        alone = [t if i == k else t.detach() for k, t in enumerate(inputs)]
        wanted, leaf.grad = leaf.grad, None
        op(*alone)[0].sum().backward()
        assert wanted is not None and leaf.grad is not None
        np.testing.assert_array_equal(leaf.grad, wanted)
        leaf.grad = wanted


@every_op
def test_the_graph_can_be_kept_and_notices_changes(name: str) -> None:
    op, inputs = OPS[name][0], operands(name)
    total = sum((part.sum() for part in op(*inputs)), start=tensor(np.zeros(())))
    total.backward(retain_graph=True)
    once = [leaf.grad.copy() for leaf in inputs]  # type: ignore[union-attr]
    total.backward(retain_graph=True)
    for leaf, gradient in zip(inputs, once):
        np.testing.assert_allclose(leaf.grad, 2 * gradient)
    out = op(*inputs)[0]
    out *= 2
    with pytest.raises(AutogradError, match=name):
        out.sum().backward()


@every_op
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bits_are_computed_in_float32(name: str, dtype: type) -> None:
    op, inputs = OPS[name][0], operands(name, dtype)
    out, *_ = op(*inputs)
    exact, *_ = op(*[t.data.astype(np.float64) for t in inputs])
    assert out.dtype == dtype
    # One rounding, at the end.
    np.testing.assert_array_equal(out.data, exact.data.astype(np.float32).astype(dtype))


def test_input_and_weights_may_differ_in_dtype() -> None:
    x, *weights = operands("gru", np.float32)
    out, _ = gru(x.astype(np.float64), *weights)
    assert out.dtype == np.float64
    out.sum().backward()
    assert x.grad is not None and weights[0].grad is not None
    assert x.grad.dtype == weights[0].grad.dtype == np.float32


def test_sigmoid_in_place() -> None:
    x = np.array([-800.0, -2.0, 0.0, 3.0, 800.0])
    expected = 1 / (1 + np.exp(-np.clip(x, -700, 700)))
    assert sigmoid_(np, x) is x
    np.testing.assert_allclose(x, expected, atol=1e-16)


def test_order_of_steps() -> None:
    inputs = tensors("rnn", draw(2, 1, 1), draw(1, 1), draw(1, 1), None, None, None)
    assert Sweep("rnn", 1, inputs, False, None).order == [(0, 0, 1), (1, 1, 2)]
    assert Sweep("rnn", 1, inputs, True, None).order == [(1, 2, 1), (0, 1, 0)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": draw(4, 2)}, "input must be (time, batch, features), not (4, 2)"),
        ({"weight_hh": draw(15, 4)}, "weight_hh must be (3 * hidden, hidden), not (15, 4)"),
        ({"weight_ih": draw(15, 3)}, "weight_ih must have shape (15, 2), not (15, 3)"),
        ({"bias_hh": draw(5)}, "bias_hh must have shape (15,), not (5,)"),
        ({"bias_hh": None}, "give both biases or neither"),
        ({"h": draw(2, 5)}, "initial state must have shape (3, 5), not (2, 5)"),
        ({"input": np.ones((4, 3, 2), int)}, "dtype int64 is not floating"),
        ({"lengths": [1.0, 2.0, 3.0]}, "lengths must be 3 integers"),
        ({"lengths": [1, 2, 5]}, "lengths must lie in [0, 4], not in [1, 5]"),
    ],
)
def test_misuse_is_refused(change: dict[str, object], message: str) -> None:
    names = ["input", "weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    with pytest.raises(ArgumentError, match="^gru: .*" + re.escape(message)):
        gru(**(dict(zip(names, operands("gru"))) | change))  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(list(OPS)),
    sizes=st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 3), st.integers(1, 4)),
    reverse=st.booleans(),
    data=st.data(),
)
def test_any_shapes_and_lengths(
    name: str, sizes: tuple[int, ...], reverse: bool, data: st.DataObject
) -> None:
    """Each sequence of a padded batch is what it is alone."""
    (steps, batch, features, hidden), (op, gates) = sizes, OPS[name]
    lengths = data.draw(st.lists(st.integers(0, steps), min_size=batch, max_size=batch))
    weights = [draw(gates * hidden, features), draw(gates * hidden, hidden)]
    x = draw(steps, batch, features)
    out, *ends = op(x, *weights, reverse=reverse, lengths=lengths)
    assert out.shape == (steps, batch, hidden) and {end.shape for end in ends} == {(batch, hidden)}
    for b, length in enumerate(lengths):
        alone, *lasts = op(x[:length, b : b + 1], *weights, reverse=reverse)
        np.testing.assert_allclose(out.data[:length, b], alone.data[:, 0], atol=1e-13)
        for end, last in zip(ends, lasts, strict=True):
            np.testing.assert_allclose(end.data[b], last.data[0], atol=1e-13)
