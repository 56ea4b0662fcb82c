"""Every operation of the catalogue in `tests/support/op_cases`, through the same checks."""

import ml_dtypes
import numpy as np
import pytest
from op_case import Case, collect, dense, one_tensor, strided_copy

from psframework import backend
from psframework.autograd import Tensor, backward, no_grad
from psframework.errors import ArgumentError, AutogradError
from psframework.testing.gradcheck import gradcheck
from psframework.testing.strict_device import strict_devices

CASES = list(collect("op_cases"))
SEVERAL = [case for case in CASES if len(case.inputs) > 1]
every_case = pytest.mark.parametrize("case", CASES, ids=repr)


@pytest.fixture
def device():
    with strict_devices("gpu-0") as (device,):
        yield device


def run(case: Case, arrays, constants):
    """The result, and the gradient of each input for a seed of varied numbers."""
    leaves = [Tensor(array, True) for array in arrays]
    out = one_tensor(case.op(*leaves, *constants))
    seed = np.linspace(0.5, 1.5, out.size).reshape(out.shape).astype(out.dtype)
    xp = backend.xp(out.data)
    found = backward([out], [seed if xp is np else xp.to_device(seed)]) if out.requires_grad else {}
    zeros = [xp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
    return [out.data, *(dense(found.get(leaf, zero)) for leaf, zero in zip(leaves, zeros))]


@every_case
def test_gradients(case):
    def op(*args):
        return one_tensor(case.op(*args, *case.constants))

    if not op(*(Tensor(array, True) for array in case.inputs)).requires_grad:
        return  # a constant result: sign, argmax
    gradcheck(op, [array.copy() for array in case.inputs], tolerance=case.tolerance)
    if case.strided:
        gradcheck(op, [strided_copy(array) for array in case.inputs], tolerance=case.tolerance)


@pytest.mark.parametrize("case", SEVERAL, ids=repr)
def test_each_input_alone(case):
    for place in range(len(case.inputs)):

        def op(x, place=place):
            inputs = [*case.inputs[:place], x, *case.inputs[place + 1 :]]
            return one_tensor(case.op(*inputs, *case.constants))

        leaf = Tensor(case.inputs[place].copy(), True)
        if op(leaf).requires_grad:
            gradcheck(op, [leaf.data], tolerance=case.tolerance)


@every_case
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_16_bits(case, dtype):
    """Results and gradients have the inputs' dtype, and the precision of sums kept in float32."""
    hosts = [array.astype(dtype) for array in case.inputs]
    found = run(case, hosts, case.constants)
    assert all(array.dtype == dtype for array in found[1:])
    if not found[0].size:
        return
    exact = run(case, [host.astype(np.float64) for host in hosts], case.constants)
    epsilon = float(ml_dtypes.finfo(dtype).eps)
    for ours, wanted in zip(found, exact):
        if ours.size and ours.dtype == dtype:
            allowed = case.narrow * epsilon * max(1.0, float(np.abs(wanted).max()))
            np.testing.assert_allclose(ours.astype(np.float64), wanted, rtol=0, atol=allowed)


@every_case
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_on_a_device(case, dtype, device):
    """Nothing leaves the device, and what comes out equals the host's."""
    hosts = [array.astype(dtype) for array in case.inputs]
    expected = run(case, hosts, case.constants)
    found = run(case, [device.to_device(h) for h in hosts], [device.to_device(c) for c in case.constants])
    for ours, theirs in zip(found, expected):
        assert backend.xp(ours) is device and ours.dtype == theirs.dtype
        epsilon = np.finfo(dtype).eps * 4
        np.testing.assert_allclose(backend.asnumpy(ours), theirs, rtol=epsilon, atol=epsilon)


@pytest.mark.parametrize("case", [case for case in SEVERAL if case.mixed], ids=repr)
def test_operands_on_two_devices(case, device):
    inputs = [
        Tensor(case.inputs[0], True),
        *(Tensor(device.to_device(array), True) for array in case.inputs[1:]),
    ]
    with pytest.raises(ArgumentError, match=r"\.to\("):
        case.op(*inputs, *case.constants)


@every_case
def test_a_graph_is_recorded_when_wanted_and_freed_after_use(case):
    with no_grad():
        assert not one_tensor(
            case.op(*(Tensor(array, True) for array in case.inputs), *case.constants)
        ).requires_grad
    out = one_tensor(case.op(*(Tensor(array, True) for array in case.inputs), *case.constants))
    if out.requires_grad:
        backward([out], [np.ones(out.shape)])
        with pytest.raises(AutogradError, match="freed"):
            backward([out], [np.ones(out.shape)])


def test_the_checks_can_fail(device):
    """A wrong derivative, a result that leaves the device, a sum in 16 bits: each is noticed."""
    from psframework.autograd.record import record

    def wrong(x):
        return record("wrong", x.data * 2, lambda g: (g * 3,), (x,))

    x = np.array([0.5, 1.5])
    with pytest.raises(AssertionError, match="error"):
        test_gradients(Case("wrong", wrong, [x]))

    def leaving(x):
        return record("leaving", backend.asnumpy(x.data) * 2, lambda g: (g * 2,), (x,))

    with pytest.raises((AssertionError, TypeError)):
        test_on_a_device(Case("leaving", leaving, [x]), np.float32, device)

    def narrow_sum(x):
        out = np.zeros((), x.dtype)
        for value in x.data:
            out = (out + value).astype(x.dtype)
        return record("narrow_sum", out, lambda g: (np.broadcast_to(g, x.shape),), (x,))

    with pytest.raises(AssertionError):
        test_16_bits(Case("narrow_sum", narrow_sum, [np.full(4000, 0.7)]), np.float16)
