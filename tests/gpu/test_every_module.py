"""The whole catalogue of modules on CuPy: a model moved there computes what it did on the host."""

import copy

import numpy as np
import pytest
from op_case import collect, dense, one_tensor

from psframework import backend, nn
from psframework.autograd import Tensor, backward

pytestmark = pytest.mark.gpu
CASES = [case for case in collect("module_cases") if not case.random]


def run(case, module, arrays, constants):
    leaves = [Tensor(array, True) for array in arrays]
    out = one_tensor(case.run(module, leaves, constants))
    found = backward([out], [backend.xp(out.data).ones_like(out.data)]) if out.requires_grad else {}
    parameters = [p for p in module.parameters() if p in found]
    return [out.data, *(dense(found[leaf]) for leaf in (*leaves, *parameters) if leaf in found)]


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_as_on_the_host(case, device, kernels):
    nn.manual_seed(3)
    module = case.make(dtype=np.float32)
    twin = copy.deepcopy(module).to(device)
    hosts = [array.astype(np.float32) for array in case.inputs]
    there = [backend.to_device(array, device) for array in (*hosts, *case.constants)]
    expected = run(case, module, hosts, case.constants)
    found = run(case, twin, there[: len(hosts)], there[len(hosts) :])
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        assert backend.device_of(ours) == device
        allowed = 1e-4 * max(1.0, float(np.abs(theirs).max(initial=0)))
        np.testing.assert_allclose(backend.asnumpy(ours), theirs, rtol=1e-4, atol=allowed)
    assert all(backend.device_of(array) == device for array in twin.buffers())
