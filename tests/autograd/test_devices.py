"""Every operation and its gradient on arrays that are not NumPy's: nothing leaves the device in between."""

import numpy as np
import pytest

from psframework import backend
from psframework.autograd import Tensor, backward, no_grad
from psframework.autograd.ops import (
    activation,
    arithmetic,
    elementwise,
    reduce,
)
from psframework.autograd.ops.matmul import linear
from psframework.autograd.ops.softmax import log_softmax, softmax
from psframework.errors import ArgumentError
from psframework.testing.strict_device import StrictDevice

rng = np.random.default_rng(12)


def positive(*shape):
    return rng.uniform(0.5, 2, shape)


A, B = positive(3, 4), positive(3, 4)
CASES = {
    **{
        op.__name__: (op, [A, B])
        for op in (
            arithmetic.add,
            arithmetic.subtract,
            arithmetic.multiply,
            arithmetic.divide,
            arithmetic.power,
            arithmetic.maximum,
            arithmetic.minimum,
        )
    },
    **{
        op.__name__: (op, [A])
        for op in (
            elementwise.negative,
            elementwise.exp,
            elementwise.log,
            elementwise.sqrt,
            elementwise.absolute,
            elementwise.clone,
            activation.relu,
            activation.tanh,
            activation.sigmoid,
            softmax,
            log_softmax,
            reduce.sum,
            reduce.mean,
            reduce.var,
            reduce.std,
            reduce.max,
            reduce.min,
        )
    },
    "broadcast": (lambda a, b: a * b + b / 2, [A, B[0]]),
    "numbers": (lambda a: 2 / a - a**3 + 2**a, [A]),
    "power by array": (lambda a, b: a**b, [A, B[0]]),
    "where": (lambda a, b: arithmetic.where(a > b, a, b), [A, B]),
    "clip": (lambda a: a.clip(0.8, 1.5), [A]),
    "gelu tanh": (lambda a: activation.gelu(a, "tanh"), [A]),
    "mean axis": (lambda a: a.mean(0, keepdims=True), [A]),
    "max axis": (lambda a: a.max(1), [A]),
    "linear large": (linear, [positive(2, 100), positive(100, 100), positive(100)]),
}


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(backend, "_namespaces", dict(backend._namespaces))
    return StrictDevice("gpu-0")


def gradients(op, arrays, seed_like):
    leaves = [Tensor(array, True) for array in arrays]
    out = op(*leaves)
    found = backward([out], [seed_like(out.data)])
    return [out.data, *(found[leaf] for leaf in leaves)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_operations_stay_on_the_device(case, dtype, device):
    op, arrays = CASES[case]
    hosts = [array.astype(dtype) for array in arrays]
    expected = gradients(op, hosts, np.ones_like)
    found = gradients(op, [device.to_device(host) for host in hosts], device.ones_like)
    for ours, theirs in zip(found, expected):
        assert backend.xp(ours) is device and ours.dtype == theirs.dtype
        np.testing.assert_array_equal(backend.asnumpy(ours), theirs)


def test_what_takes_more_than_tensors(device):
    rows = Tensor(device.to_device(A), True)
    rows[device.to_device(np.array([0, 0, 2]))].sum().backward()
    assert backend.xp(rows.grad) is device
    with no_grad():
        rows *= 2
        rows[0] = 1.0
    assert rows.version == 2


def test_host_arrays_do_not_mix(device):
    t = Tensor(device.to_device(A), True)
    with pytest.raises(ArgumentError, match="add: operands are on gpu-0 and cpu: move one with"):
        t + B
