"""The whole catalogue of operations on CuPy: results and gradients are those of the host."""

import ml_dtypes
import numpy as np
import pytest
from op_case import collect, dense, one_tensor

from psframework import backend
from psframework.autograd import Tensor, backward
from psframework.errors import ArgumentError

pytestmark = pytest.mark.gpu
CASES = list(collect("op_cases"))
SEVERAL = [case for case in CASES if len(case.inputs) > 1 and case.mixed]
TOLERANCE = {"float32": 1e-5, "float64": 1e-11, "float16": 4e-3, "bfloat16": 4e-2}


def run(case, arrays, constants):
    leaves = [Tensor(array, True) for array in arrays]
    out = one_tensor(case.op(*leaves, *constants))
    seed = np.linspace(0.5, 1.5, out.size).reshape(out.shape).astype(out.dtype)
    found = backward([out], [backend.to_device(seed, out.device)]) if out.requires_grad else {}
    return [out.data, *(dense(found[leaf]) for leaf in leaves if leaf in found)]


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: d.__name__
)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_as_on_the_host(case, dtype, device, kernels):
    if case.narrow is None and np.dtype(dtype).itemsize == 2:
        return
    hosts = [array.astype(dtype) for array in case.inputs]
    expected = run(case, hosts, case.constants)
    there = [backend.to_device(array, device) for array in (*hosts, *case.constants)]
    found = run(case, there[: len(hosts)], there[len(hosts) :])
    tolerance = TOLERANCE[np.dtype(dtype).name]
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        assert backend.device_of(ours) == device and ours.dtype == theirs.dtype and ours.shape == theirs.shape
        wide = theirs.astype(np.float64)
        allowed = tolerance * max(1.0, float(np.abs(wide).max(initial=0)))
        np.testing.assert_allclose(
            backend.asnumpy(ours).astype(np.float64), wide, rtol=tolerance, atol=allowed
        )


@pytest.mark.parametrize("case", SEVERAL, ids=repr)
def test_operands_on_two_devices(case, device):
    first, *others = case.inputs
    inputs = [Tensor(first, True), *(Tensor(backend.to_device(array, device), True) for array in others)]
    with pytest.raises(ArgumentError, match=r"\.to\("):
        case.op(*inputs, *case.constants)
