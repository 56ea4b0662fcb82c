"""Modules to other devices and dtypes: what is replaced, what stays, what is refused."""

from typing import Any

import numpy as np
import pytest

from psframework import backend, optim
from psframework.autograd import SparseRows, tensor
from psframework.errors import ArgumentError
from psframework.nn import BatchNorm1d, Embedding, Linear, Module, Sequential
from psframework.nn.moving import convert, move
from psframework.testing.strict_device import strict_devices

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


@pytest.fixture
def device():
    with strict_devices("gpu-0") as [device]:
        yield device


def model() -> Sequential:
    return Sequential(Linear(3, 3), BatchNorm1d(3), Linear(3, 2))


def test_dtype_of_parameters_gradients_and_floating_buffers() -> None:
    net = model()
    net(X).sum().backward()
    identities = list(net.parameters())
    assert net.to(np.float64) is net
    assert all(a is b for a, b in zip(net.parameters(), identities))
    assert all(p.dtype == p.grad.dtype == np.float64 for p in net.parameters())
    assert net[1].running_mean.dtype == np.float64 and net[1].num_batches_tracked.dtype == np.int64
    assert net(X.astype(np.float64)).dtype == np.float64


@pytest.mark.parametrize(
    ("act", "dtype"),
    [
        (lambda m: m.half(), "float16"),
        (lambda m: m.bfloat16(), "bfloat16"),
        (lambda m: m.double().float(), "float32"),
        (lambda m: m.to("float64"), "float64"),
        (lambda m: m.to(tensor(np.ones(1))), "float64"),
        (lambda m: m.to("cpu", np.float16), "float16"),
        (lambda m: m.to(device="cpu", dtype="float64"), "float64"),
        (lambda m: m.double().cpu(), "float64"),
    ],
)
def test_ways_to_say_it(act: Any, dtype: str) -> None:
    assert {backend.dtype_name(p.dtype) for p in act(model()).parameters()} == {dtype}


def test_to_a_device_an_optimizer_goes_on(device) -> None:
    net = model()
    optimizer = optim.SGD(net.parameters(), lr=0.5)
    net(X).sum().backward()
    net.to(device.device)
    arrays = [p.data for p in net.parameters()] + [p.grad for p in net.parameters()] + list(net.buffers())
    assert all(backend.xp(array) is device for array in arrays)
    before = backend.asnumpy(net[2].bias.data)
    optimizer.step()
    np.testing.assert_allclose(backend.asnumpy(net[2].bias.data), before - 0.5 * 4)
    net.cpu()
    assert all(type(p.data) is np.ndarray for p in net.parameters())


def test_sparse_gradients_move_along(device) -> None:
    table = Embedding(5, 2, sparse=True)
    table(np.array([1, 3])).sum().backward()
    table.to(device.device, np.float64)
    gradient = table.weight.grad
    assert isinstance(gradient, SparseRows) and gradient.dtype == np.float64 and gradient.coalesced
    assert backend.xp(gradient.rows) is device and backend.xp(gradient.values) is device
    assert backend.asnumpy(gradient.rows).tolist() == [1, 3]


def test_like_a_tensor_on_a_device(device) -> None:
    net = model().to(tensor(device.to_device(np.zeros(1))))
    assert backend.xp(net[0].weight.data) is device and net[0].weight.dtype == np.float64


def test_what_is_shared_stays_shared() -> None:
    net = model()
    net[2].running = None
    net[0].weight = net[1].extra = net[0].weight
    net[0].register_buffer("table", X)
    net[2].register_buffer("table", X)
    net.double()
    assert net[0].weight is net[1].extra and net[0].table is net[2].table
    assert net[0].table.dtype == np.float64 and X.dtype == np.float32


def test_no_change_is_no_copy() -> None:
    net = model()
    arrays = list(net.state_dict(copy=False).values())
    assert all(a is b for a, b in zip(net.to("cpu", np.float32).state_dict(copy=False).values(), arrays))


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (("tpu",), "tpu"),
        ((3.5,), "a device .* or a floating dtype, not 3.5"),
        ((np.int32,), "takes a floating dtype, not int32"),
    ],
)
def test_bad_targets(targets: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        model().to(*targets)


def test_a_wrapped_model_is_not_moved() -> None:
    net = model()
    net[2].weight.grad_buffer = np.zeros((2, 3), np.float32)
    with pytest.raises(ArgumentError, match=r"2.weight cannot be moved: .* before it is wrapped"):
        net.half()
    assert net[0].weight.dtype == np.float32


def test_a_failure_changes_nothing() -> None:
    net = model()

    def full(array: Any) -> Any:
        if array.dtype == np.int64:
            raise MemoryError
        return array.astype(np.float64)

    with pytest.raises(MemoryError):
        move(net, full)
    assert {p.dtype for p in net.parameters()} == {np.dtype(np.float32)}


def test_conversion_of_one_array() -> None:
    assert convert(np.float16)(np.ones(2, np.int8)).dtype == np.int8
    array = np.ones(2)
    assert convert()(array) is array
    assert isinstance(Module().to(np.float16), Module)
