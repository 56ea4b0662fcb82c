import numpy as np
import pytest
from torch_oracle import assert_equals_torch

from psframework.autograd import tensor
from psframework.autograd.ops.group_norm import group_norm, instance_norm
from psframework.autograd.ops.windows import inside_out
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(16)
SHAPES = [(3, 6), (3, 6, 4), (2, 6, 4, 3), (1, 6, 1, 2), (0, 6, 4)]


@pytest.mark.oracle
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_torch(shape):
    F = pytest.importorskip("torch").nn.functional
    x, weight, bias = rng.standard_normal(shape), rng.standard_normal(6), rng.standard_normal(6)
    full = {"input": x, "weight": weight, "bias": bias}
    for groups in (1, 2, 3, 6):
        for arrays in ({"input": x}, {"input": x, "weight": weight}, full):
            assert_equals_torch(group_norm, F.group_norm, arrays, num_groups=groups, eps=1e-3)
    if len(shape) > 2 and len(x):
        assert_equals_torch(instance_norm, F.instance_norm, full)


def test_each_input_alone_and_strided():
    x, weight, bias = rng.standard_normal((2, 4, 3)), rng.standard_normal(4), rng.standard_normal(4)
    gradcheck(lambda x: group_norm(x, 2, weight, bias), [rng.standard_normal((4, 4, 6))[::2, ::-1, ::2]])
    gradcheck(lambda w: group_norm(x, 2, w, bias), [weight])
    gradcheck(lambda b: group_norm(x, 2, weight, b), [bias])


def test_images_as_conv_leaves_them_are_not_copied_on():
    x = np.ascontiguousarray(inside_out(rng.standard_normal((5, 4, 3, 3)))).transpose(3, 0, 1, 2)
    assert inside_out(group_norm(x, 2).data).flags.c_contiguous


def test_16_bits_are_computed_in_float32():
    t = tensor(rng.standard_normal((2, 4, 500)) * 30, True, dtype=np.float16)
    out = group_norm(t, 2)
    out.sum().backward()
    assert out.dtype == t.grad.dtype == np.float16
    np.testing.assert_allclose(out.data, group_norm(t.data.astype(float), 2).data, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: group_norm(np.zeros((2, 4, 3)), 3), r"divisible by 3 group\(s\), got \(2, 4, 3\)"),
        (lambda: group_norm(np.zeros((2, 4, 3)), 0), "group_norm: input must be"),
        (lambda: group_norm(np.zeros((2, 4)), 2, np.zeros(3)), "weight must have shape"),
        (lambda: instance_norm(np.zeros((2, 4, 1))), "two elements a channel"),
        (lambda: instance_norm(np.zeros((2, 4))), "two elements a channel"),
        (lambda: group_norm(np.zeros((2, 4), int), 2), "not floating"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
