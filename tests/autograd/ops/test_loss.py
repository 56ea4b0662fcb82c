import ml_dtypes
import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops.loss import cross_entropy, mse_loss
from psframework.autograd.ops.softmax import log_softmax
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(8)
LOGITS, TARGETS = rng.standard_normal((6, 5)), np.array([4, 0, 1, 3, 2, 2])
IMAGES, PIXELS = rng.standard_normal((2, 5, 3, 4)), rng.integers(0, 5, (2, 3, 4))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("logits", "targets"),
    [(LOGITS, TARGETS), (LOGITS.copy(order="F"), TARGETS), (LOGITS[:, ::-1], TARGETS), (IMAGES, PIXELS)],
)
def test_cross_entropy(reduction, logits, targets):
    gradcheck(lambda x: cross_entropy(x, targets, reduction=reduction), [logits])
    logs = np.take_along_axis(log_softmax(logits, 1).data, np.expand_dims(targets, 1), 1).squeeze(1)
    expected = -logs if reduction == "none" else getattr(np, reduction)(-logs)
    np.testing.assert_allclose(cross_entropy(logits, targets, reduction=reduction).data, expected)


def test_targets_of_any_integer_dtype_and_as_tensor():
    expected = cross_entropy(LOGITS, TARGETS).item()
    for dtype in (np.int8, np.uint8, np.int32, np.uint64):
        assert cross_entropy(LOGITS, TARGETS.astype(dtype)).item() == expected
    assert cross_entropy(LOGITS, tensor(TARGETS)).item() == expected


def test_a_second_backward_over_a_retained_graph_gives_the_same():
    t = tensor(LOGITS, True)
    loss = cross_entropy(t, TARGETS)
    loss.backward(retain_graph=True)
    first = t.grad.copy()
    loss.backward()
    np.testing.assert_array_equal(t.grad, 2 * first)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bits_are_computed_in_float32(dtype):
    t = tensor(np.zeros((3, 4000)), True, dtype=dtype)
    loss = cross_entropy(t, np.zeros(3, int))
    loss.backward()
    assert loss.dtype == t.grad.dtype == dtype
    np.testing.assert_allclose(float(loss), np.log(4000), rtol=float(ml_dtypes.finfo(dtype).eps))


def test_large_logits():
    assert cross_entropy(np.array([[1e4, 0.0]], np.float32), np.array([1])).item() == 1e4


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_mse(reduction):
    target = rng.standard_normal((6, 5))
    gradcheck(lambda a, b: mse_loss(a, b, reduction=reduction), [LOGITS, target])
    gradcheck(lambda a: mse_loss(a, target, reduction=reduction), [LOGITS[::2, ::-1].copy().repeat(2, 0)])
    squares = (LOGITS - target) ** 2
    expected = squares if reduction == "none" else getattr(np, reduction)(squares)
    np.testing.assert_allclose(mse_loss(LOGITS, target, reduction=reduction).data, expected)
    gradcheck(lambda a: mse_loss(a, np.array(2.0), reduction=reduction), [np.array(1.0)])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cross_entropy(LOGITS, TARGETS + 1), "targets from .* to 5 for 5 classes"),
        (lambda: cross_entropy(LOGITS, TARGETS - 5), "targets from -5"),
        (lambda: cross_entropy(LOGITS, TARGETS[:3]), r"need targets of shape \(6,\), got \(3,\)"),
        (lambda: cross_entropy(LOGITS, TARGETS.astype(float)), "array of integers"),
        (lambda: cross_entropy(LOGITS, [1, 2]), "array of integers"),
        (lambda: cross_entropy(LOGITS[0], TARGETS[0]), "array of integers"),
        (lambda: cross_entropy(LOGITS, TARGETS, reduction="max"), "'max' is none of mean, sum, none"),
        (lambda: mse_loss(LOGITS, LOGITS[0]), r"\(6, 5\) and target \(5,\) differ"),
        (lambda: mse_loss(LOGITS, LOGITS, reduction="max"), "'max' is none of"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
