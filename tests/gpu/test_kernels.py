"""Fused kernels at sizes that the emulator is too slow for, and against torch-like reference formulas."""

import ml_dtypes
import numpy as np
import pytest

from psframework import backend, optim
from psframework.autograd import Tensor, backward
from psframework.autograd.ops.activation import gelu
from psframework.autograd.ops.batch_norm import batch_norm
from psframework.autograd.ops.cross_entropy import cross_entropy
from psframework.autograd.ops.layer_norm import layer_norm, rms_norm
from psframework.autograd.ops.softmax import log_softmax, softmax

pytestmark = pytest.mark.gpu
TOLERANCE = {"float32": 2e-5, "float64": 1e-11, "float16": 4e-3, "bfloat16": 4e-2}
SHAPES = [(1, 1), (33, 31), (7, 1024), (300, 5000), (100_000, 3)]
OPS = {
    "softmax": softmax,
    "log_softmax": log_softmax,
    "gelu": gelu,
    "gelu tanh": lambda x: gelu(x, "tanh"),
    "layer_norm": lambda x: layer_norm(x, x.shape[-1]),
    "rms_norm": lambda x: rms_norm(x, x.shape[-1], eps=1e-5),
    "batch_norm": lambda x: batch_norm(x.reshape(x.shape[0], -1, 1), None) if x.shape[0] > 30 else x * 1,
    "cross_entropy": lambda x: cross_entropy(
        x, backend.array_like(np.arange(x.shape[0]) % x.shape[1], x.data), reduction="none"
    ),
}


def run(op, array):
    leaf = Tensor(array, True)
    out = op(leaf)
    seed = np.linspace(0.5, 1.5, out.size).reshape(out.shape).astype(out.dtype)
    return out.data, backward([out], [backend.to_device(seed, out.device)])[leaf]


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: d.__name__
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_large_arrays(op, shape, dtype, device):
    host = (np.random.default_rng(0).standard_normal(shape) * 2).astype(dtype)
    tolerance = TOLERANCE[np.dtype(dtype).name]
    for ours, theirs in zip(run(op, backend.to_device(host, device)), run(op, host.astype(np.float64))):
        wide = backend.asnumpy(ours).astype(np.float64)
        allowed = tolerance * max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(wide, theirs, rtol=tolerance, atol=allowed)


RULES = [
    optim.SGDRule(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    optim.AdamRule(lr=0.1, weight_decay=0.1, amsgrad=True),
    optim.AdamWRule(lr=0.1),
    optim.AdagradRule(lr=0.1),
    optim.RMSpropRule(lr=0.1, centered=True, momentum=0.5),
    optim.FTRLRule(lr=0.1, l1=0.05, beta=0.5),
    optim.LAMBRule(lr=0.1, weight_decay=0.1),
]


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16], ids=lambda d: d.__name__
)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_updates(rule, dtype, device, kernels):
    rng = np.random.default_rng(1)
    host = rng.standard_normal((1000, 37)).astype(dtype)
    there = backend.to_device(host, device)
    host_state, state = rule.init_state(host), rule.init_state(there)
    for step in (1, 2, 3):
        gradient = rng.standard_normal(host.shape).astype(dtype)
        rule.update(there, backend.to_device(gradient, device), state, step)
        rule.update(host, gradient, host_state, step)
    tolerance = TOLERANCE[np.dtype(dtype).name]
    found = backend.asnumpy(there).astype(np.float64)
    np.testing.assert_allclose(found, host.astype(np.float64), rtol=tolerance, atol=tolerance)
