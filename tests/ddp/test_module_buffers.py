"""All buffers of a model as one array of bytes."""

import numpy as np

from psframework import nn
from psframework.ddp.module_buffers import ModuleBuffers


class Odd(nn.Module):
    def __init__(self, fill: int) -> None:
        self.register_buffer("count", np.array(fill, np.int64))
        self.register_buffer("mask", np.full((3, 2), fill % 2 == 0), persistent=False)
        self.register_buffer("nothing", np.empty((0, 4)))
        self.register_buffer("turned", np.full((2, 3), fill, np.float32).T)
        self.norm = nn.BatchNorm1d(2)


def test_what_one_packs_another_unpacks_in_place() -> None:
    one, other = Odd(4), Odd(5)
    one.get_buffer("norm.running_mean")[...] = 7
    kept = other.get_buffer("turned")
    ModuleBuffers(other).unpack(ModuleBuffers(one).pack())
    for name, array in one.named_buffers():
        np.testing.assert_array_equal(other.get_buffer(name), array)
    assert other.get_buffer("turned") is kept


def test_a_buffer_that_was_replaced_is_found() -> None:
    one = Odd(1)
    buffers = ModuleBuffers(one)
    one.register_buffer("count", np.array(9, np.int64))
    other = Odd(2)
    ModuleBuffers(other).unpack(buffers.pack())
    assert int(other.get_buffer("count")) == 9


def test_a_model_without_any() -> None:
    assert len(ModuleBuffers(nn.Linear(2, 2))) == 0
    assert len(ModuleBuffers(Odd(1))) == 7
