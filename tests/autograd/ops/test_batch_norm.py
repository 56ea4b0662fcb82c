import ml_dtypes
import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops.batch_norm import Running, batch_norm
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(11)
SHAPES = [(6, 3), (4, 3, 5), (2, 3, 4, 5)]


def statistics(dtype=np.float64):
    return Running(rng.standard_normal(3).astype(dtype), rng.uniform(0.5, 2, 3).astype(dtype))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("training", [True, False])
def test_gradients(shape, training):
    x, weight, bias = rng.standard_normal(shape), rng.standard_normal(3), rng.standard_normal(3)
    running = None if training else statistics()
    gradcheck(lambda x, w, b: batch_norm(x, running, w, b, training), [x, weight, bias])
    gradcheck(lambda x: batch_norm(x, running, None, None, training), [x])
    gradcheck(lambda w: batch_norm(x, running, w, None, training), [weight])
    gradcheck(lambda b: batch_norm(x, running, weight, b, training), [bias])
    last = np.asfortranarray(x)  # the batch last in memory, as conv2d leaves it
    gradcheck(lambda x: batch_norm(x, running, weight, bias, training), [last])


def test_training_normalizes_and_moves_the_statistics():
    x = rng.standard_normal((8, 3, 4)) * 3 + 5
    running = Running(np.zeros(3), np.ones(3))
    out = batch_norm(x, running, momentum=0.25).data
    np.testing.assert_allclose(out.mean(axis=(0, 2)), 0, atol=1e-12)
    np.testing.assert_allclose(out.var(axis=(0, 2)), 1, rtol=1e-4)
    np.testing.assert_allclose(running.mean, 0.25 * x.mean(axis=(0, 2)))
    np.testing.assert_allclose(running.var, 0.75 + 0.25 * x.var(axis=(0, 2), ddof=1))


def test_evaluation_leaves_the_statistics_alone():
    running = statistics()
    before = running.mean.copy(), running.var.copy()
    x = rng.standard_normal((1, 3))
    out = batch_norm(x, running, training=False).data
    np.testing.assert_allclose(out, (x - before[0]) / np.sqrt(before[1] + 1e-5))
    np.testing.assert_array_equal(running.mean, before[0])
    np.testing.assert_array_equal(running.var, before[1])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bits_are_computed_in_float32(dtype):
    t = tensor(rng.standard_normal((2000, 3)) + 3, True, dtype=dtype)
    w, running = (
        tensor(np.ones(3), True, dtype=dtype),
        Running(np.zeros(3, np.float32), np.ones(3, np.float32)),
    )
    out = batch_norm(t, running, w)
    out.sum().backward()
    assert out.dtype == t.grad.dtype == w.grad.dtype == dtype
    np.testing.assert_allclose(running.mean, 0.1 * t.data.astype(np.float32).mean(0), rtol=1e-5)


X = np.zeros((4, 3))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: batch_norm(np.zeros(3), None), r"\(batch, channels, \.\.\.\)"),
        (lambda: batch_norm(X.astype(int), None), "floating"),
        (lambda: batch_norm(X, None, np.zeros(4)), r"weight must have shape \(3,\), got \(4,\)"),
        (
            lambda: batch_norm(X, Running(np.zeros(2), np.zeros(3))),
            r"running statistics must have shape \(3,\), got \(2,\)",
        ),
        (lambda: batch_norm(X[:1], None), "fewer than two values a channel"),
        (lambda: batch_norm(X, None, training=False), "running statistics are needed"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
