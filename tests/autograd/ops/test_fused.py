"""The fused kernels, in an emulator, through the operations: results and gradients are those of the host."""

import ml_dtypes
import numpy as np
import pytest
from op_case import collect, one_tensor

import psframework as psf
from psframework import backend
from psframework.autograd import Tensor, backward
from psframework.autograd.ops.batch_norm import Running, batch_norm
from psframework.autograd.ops.cross_entropy import cross_entropy
from psframework.autograd.ops.fused import along_rows
from psframework.autograd.ops.layer_norm import layer_norm
from psframework.autograd.ops.softmax import softmax
from psframework.testing.strict_device import strict_devices

FUSED = {"softmax", "log_softmax", "gelu", "cross_entropy", "layer_norm", "rms_norm", "batch_norm"}
CASES = [case for case in collect("op_cases") if FUSED & set(case.names)]
TOLERANCE = {"float32": 3e-6, "float64": 1e-12, "float16": 3e-3, "bfloat16": 3e-2}


@pytest.fixture
def device():
    with strict_devices("fused-0", fused=True) as (device,):
        yield device


def run(op, arrays, seed_like):
    leaves = [Tensor(array, True) for array in arrays]
    out = one_tensor(op(*leaves))
    seed = np.linspace(0.5, 1.5, out.size).reshape(out.shape).astype(out.dtype)
    found = backward([out], [seed_like(seed)])
    return [out.data, *(found[leaf] for leaf in leaves if leaf in found)]


def same(ours, theirs, dtype):
    assert len(ours) == len(theirs)
    tolerance = TOLERANCE[np.dtype(dtype).name]
    for our, their in zip(ours, theirs):
        assert our.dtype == their.dtype and our.shape == their.shape
        wide = backend.asnumpy(our).astype(np.float64)
        np.testing.assert_allclose(wide, their.astype(np.float64), rtol=tolerance, atol=tolerance)


def test_the_catalogue_has_cases_for_each():
    assert {name for case in CASES for name in case.names} >= FUSED


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_as_on_the_host(case, dtype, device):
    hosts = [array.astype(dtype) for array in case.inputs]
    constants = [device.to_device(constant) for constant in case.constants]
    theirs = run(lambda *x: case.op(*x, *case.constants), hosts, np.asarray)
    ours = run(lambda *x: case.op(*x, *constants), [device.to_device(h) for h in hosts], device.to_device)
    same(ours, theirs, dtype)


WIDE = np.random.default_rng(5).standard_normal((2, 70))  # three warps, and more elements than threads
OPS = {
    "softmax": lambda x: softmax(x, -1),
    "layer_norm": lambda x: layer_norm(x, 70),
    "cross_entropy": lambda x: cross_entropy(x, backend.array_like(np.array([3, 69]), x.data)),
    "batch_norm": lambda x: batch_norm(x.reshape(35, 2, 2), None),
}


@pytest.mark.parametrize("dtype", [np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_rows_of_several_warps(op, dtype, device):
    host = WIDE.astype(dtype)
    same(run(op, [device.to_device(host)], device.to_device), run(op, [host], np.asarray), dtype)


def test_kernels_are_really_used(device, monkeypatch):
    """A wrong kernel shows: else these tests would compare the host's code with itself."""
    kernels = backend.fused(device.zeros(1))
    monkeypatch.setattr(kernels, "softmax", lambda x: x)
    x = psf.tensor([[1.0, 2.0]]).to("fused-0")
    assert softmax(x, 1).tolist() == [[1, 2]]
    assert softmax(x, 0).tolist() == [[1, 1]]  # another axis is none of the kernel's
    assert not along_rows(x.data, 0) and along_rows(x.data, 1) and not along_rows(device.zeros((0, 2)), -1)


def test_labels_that_are_no_class_show_without_waiting(device):
    x, labels = psf.tensor(np.ones((3, 2))).to("fused-0"), device.to_device(np.array([0, 5, -1]))
    before = device.synchronisations
    losses = cross_entropy(x, labels, reduction="none")
    loss = cross_entropy(x, device.to_device(np.array([-100] * 3)))
    assert device.synchronisations == before
    assert np.isnan(losses.numpy()).tolist() == [False, True, True] and np.isnan(loss.item())


def test_running_statistics(device):
    rng = np.random.default_rng(0)
    images = rng.standard_normal((3, 2, 4))
    host = Running(np.zeros(2), np.ones(2))
    there = Running(device.zeros(2), device.ones(2))
    for training in (True, False):
        expected = batch_norm(images, host, training=training).data
        found = batch_norm(device.to_device(images), there, training=training).data
        np.testing.assert_allclose(backend.asnumpy(found), expected, rtol=1e-12)
    for ours, theirs in zip(there, host):
        np.testing.assert_allclose(backend.asnumpy(ours), theirs, rtol=1e-12)
