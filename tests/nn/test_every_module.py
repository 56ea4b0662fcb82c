"""Every module of the catalogue in `tests/support/module_cases`, through the same checks."""

import copy

import numpy as np
import pytest
from module_case import ModuleCase
from op_case import collect, dense, one_tensor

from psframework import backend, nn
from psframework.autograd import Tensor, backward, no_grad
from psframework.testing.gradcheck import gradcheck
from psframework.testing.strict_device import strict_devices

CASES = list(collect("module_cases"))
STEADY = [case for case in CASES if not case.random]
every_case = pytest.mark.parametrize("case", CASES, ids=repr)
every_steady_case = pytest.mark.parametrize("case", STEADY, ids=repr)


@pytest.fixture
def device():
    with strict_devices("gpu-0") as (device,):
        yield device


def made(case: ModuleCase, dtype=np.float64) -> nn.Module:
    nn.manual_seed(3)
    return case.make(dtype=dtype)


def run(case: ModuleCase, module: nn.Module, arrays, constants):
    """The result, and the gradients of inputs and parameters by name."""
    leaves = [Tensor(array, True) for array in arrays]
    out = one_tensor(case.run(module, leaves, constants))
    seed = np.linspace(0.5, 1.5, out.size).reshape(out.shape).astype(out.dtype)
    found = backward([out], [backend.to_device(seed, backend.device_of(out.data))])
    results = {"result": out.data}
    results |= {f"input {i}": dense(found[leaf]) for i, leaf in enumerate(leaves) if leaf in found}
    return results | {name: dense(found[p]) for name, p in module.named_parameters() if p in found}


def same(found, expected, *, rtol, atol) -> None:
    assert found.keys() == expected.keys()
    for name, array in found.items():
        wanted = backend.asnumpy(expected[name])
        assert array.shape == wanted.shape, name
        np.testing.assert_allclose(
            backend.asnumpy(array).astype(float), wanted.astype(float), rtol=rtol, atol=atol, err_msg=name
        )


@every_steady_case
def test_gradients_of_inputs_and_parameters(case):
    module = made(case)
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    owners = [module.get_submodule(name.rpartition(".")[0]) for name in names]
    count = len(case.inputs)

    def op(*tensors):
        for name, owner, tensor in zip(names, owners, tensors[count:]):
            owner.__dict__[name.rpartition(".")[2]] = tensor
        return one_tensor(case.run(module, tensors[:count], case.constants))

    state = copy.deepcopy(dict(module.named_buffers()))
    arrays = [module.get_parameter(name).data for name in names]
    gradcheck(op, [*(array.copy() for array in case.inputs), *arrays], tolerance=case.tolerance)
    assert state.keys() == dict(module.named_buffers()).keys()


@every_steady_case
def test_on_a_device(case, device):
    module = made(case, np.float32)
    twin = copy.deepcopy(module).to(device.device)
    assert all(backend.xp(p.data) is device for p in twin.parameters())
    assert all(backend.xp(buffer) is device for buffer in twin.buffers())
    hosts = [array.astype(np.float32) for array in case.inputs]
    expected = run(case, module, hosts, case.constants)
    found = run(
        case, twin, [device.to_device(a) for a in hosts], [device.to_device(c) for c in case.constants]
    )
    assert all(backend.xp(array) is device for array in found.values())
    same(found, expected, rtol=1e-5, atol=1e-6)
    for (name, ours), theirs in zip(twin.named_buffers(), module.buffers()):
        np.testing.assert_allclose(backend.asnumpy(ours), theirs, rtol=1e-5, err_msg=name)


@every_case
def test_state_and_constructor_make_it_again(case):
    module = made(case)
    args, kwargs = module._constructor
    nn.manual_seed(4)
    again = type(module)(*args, **kwargs)
    assert repr(again) == repr(module)
    again.load_state_dict(module.state_dict())
    assert [name for name, _ in again.named_parameters()] == [name for name, _ in module.named_parameters()]
    for name, array in module.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name], array, err_msg=name)
    if not case.random:
        same(
            run(case, again, case.inputs, case.constants),
            run(case, made(case), case.inputs, case.constants),
            rtol=0,
            atol=0,
        )


@every_steady_case
def test_in_float16(case):
    if case.narrow is None:
        return
    module = made(case).to(np.float16)
    assert all(p.dtype == np.float16 for p in module.parameters())
    exact = copy.deepcopy(module).to(np.float64)
    hosts = [array.astype(np.float16) for array in case.inputs]
    found = run(case, module, hosts, case.constants)
    expected = run(case, exact, [host.astype(np.float64) for host in hosts], case.constants)
    for name, array in found.items():
        assert array.dtype == np.float16, name
        largest = max(1.0, float(np.abs(expected[name]).max(initial=0)))
        allowed = case.narrow * float(np.finfo(np.float16).eps) * largest
        np.testing.assert_allclose(array.astype(float), expected[name], rtol=0, atol=allowed, err_msg=name)


@every_case
def test_no_graph_under_no_grad(case):
    module = made(case)
    with no_grad():
        assert not one_tensor(
            case.run(module, [Tensor(a, True) for a in case.inputs], case.constants)
        ).requires_grad
