"""The client's memory: parameters and gradients are views; pulls swap, pushes take."""

import gc
import weakref

import numpy as np
import pytest

import psframework as psf
from psframework import nn
from psframework.autograd.sparse import SparseRows
from psframework.errors import ArgumentError
from psframework.parameter_server.arena import ModelMemory, parameter_specs
from psframework.parameter_server.layout import ParameterSpec
from psframework.parameter_server.partition import Balanced
from psframework.testing.strict_device import StrictDevice
from psframework.wire import shm
from psframework.wire.compress import Compression

SHARED = [False, pytest.param(True, marks=pytest.mark.skipif(not shm.available(), reason="needs Linux"))]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(np.arange(6, dtype=np.float32).reshape(2, 3))
        self.b = nn.Parameter(np.ones(4, np.float64))


@pytest.fixture(params=SHARED, ids=["private", "shared"])
def bound(request):
    model = Net()
    memory = ModelMemory(list(model.named_parameters()), shared=request.param)
    memory.bind()
    yield model, memory
    memory.release()


def test_parameters_keep_their_values_and_become_views(bound):
    model, memory = bound
    assert np.array_equal(model.w.data, np.arange(6).reshape(2, 3))
    model.w.data[0, 0] = 42
    assert memory.values.views[0][0, 0] == 42
    if memory.segment is not None:
        shared = memory.segment.array(memory.values.offset, (2, 3), np.float32)
        assert shared[0, 0] == 42


def test_a_swap_shows_the_other_values_and_back(bound):
    model, memory = bound
    before = model.w.data
    memory.spare.views[0][...] = 7
    assert memory.side == 1
    memory.swap()
    assert np.all(model.w.data == 7)
    assert memory.side == 0
    memory.swap()
    assert model.w.data is before


def test_backward_writes_into_the_arena_and_taking_empties_grad(bound):
    model, memory = bound
    (model.w * 2.0).sum().backward()
    (model.b * 3.0).sum().backward()
    first = model.w.grad
    arena, present = memory.take()
    assert first is arena.views[0]
    assert present == {0, 1}
    assert np.all(arena.views[0] == 2)
    assert np.all(arena.views[1] == 3)
    assert model.w.grad is None
    (model.w * 5.0).sum().backward()
    assert np.all(arena.views[0] == 2), "what is on its way must not change"
    other, present = memory.take()
    assert other is not arena
    assert present == {0}


def test_assigned_gradients_are_copied(bound):
    model, memory = bound
    model.w.grad = np.full((2, 3), 9, np.float32)
    arena, present = memory.take()
    assert present == {0}
    assert np.all(arena.views[0] == 9)


def test_sparse_gradients_are_sent_as_dense_ones(bound):
    model, memory = bound
    for gradient in ([[7, 7, 7]], [[8, 8, 8]]):  # the second time the other arena, with zeros no more
        memory.take()[0].views[0][...] = 99
        model.w.grad = SparseRows(np.array([1]), np.array(gradient, np.float32), (2, 3))
        arena, present = memory.take()
        assert present == {0}
        assert np.array_equal(arena.views[0], [[0, 0, 0], *gradient])


def test_parts_are_bytes_of_the_arena(bound):
    _, memory = bound
    partitions = Balanced().cut(memory.layout, 1)
    assert [p.dtype for p in partitions] == ["float32", "float64"]
    part = np.frombuffer(memory.values.part(partitions[0]), np.float32)
    assert np.array_equal(part[:6], np.arange(6))
    narrow = memory.values.narrowed(partitions[0], Compression.FP16)
    assert len(narrow) == partitions[0].nbytes // 2
    assert np.array_equal(np.frombuffer(narrow, np.float16)[:6], np.arange(6))


def test_a_released_model_keeps_its_values(bound):
    model, memory = bound
    memory.release()
    (model.w * 2.0).sum().backward()
    assert np.array_equal(model.w.data, np.arange(6).reshape(2, 3))
    assert np.all(model.w.grad == 2)


def test_a_released_model_has_memory_of_its_own(bound):
    model, memory = bound
    (model.w * 2.0).sum().backward()
    arenas = [weakref.ref(memory.values.memory), weakref.ref(memory.spare.memory)]
    memory.release()
    memory.swap()  # of a pull that still ran
    assert model.w.data.base is None and model.w.grad.base is None
    assert np.all(model.w.grad == 2)
    gc.collect()
    assert not [arena for arena in arenas if arena() is not None]


def test_computed_parameters_are_refused():
    x = psf.tensor(np.ones(2), requires_grad=True)
    with pytest.raises(ArgumentError, match="'y' was computed"):
        parameter_specs([("y", x * 2)])
    assert parameter_specs([("x", x)]) == (ParameterSpec("x", "float64", (2,)),)


def test_parameters_on_a_device_stay_there():
    device = StrictDevice("arena-0")
    model = Net()
    model.w.data = device.to_device(model.w.data)
    memory = ModelMemory(list(model.named_parameters()), shared=False)
    memory.bind()
    assert type(model.w.data) is device.ndarray
    assert model.w.grad_buffer is None
    rows = device.to_device(np.array([1]))
    model.w.grad = device.to_device(np.full((2, 3), 4.0, np.float32))
    arena, present = memory.take()
    assert present == {0}
    assert np.all(arena.views[0] == 4)
    model.w.grad = SparseRows(rows, device.to_device(np.full((1, 3), 5.0, np.float32)), (2, 3))
    assert np.array_equal(memory.take()[0].views[0], [[0] * 3, [5] * 3])
    memory.spare.views[0][...] = 8
    memory.swap()
    assert type(model.w.data) is device.ndarray
    assert np.all(model.w.data.host == 8)
