"""psf.ops: what is public, and that it is what it seems."""

import inspect

import numpy as np
import pytest

import psframework as psf
from psframework import nn, ops
from psframework.autograd import tensor
from psframework.errors import ArgumentError


def test_every_name_is_a_documented_function():
    assert psf.ops is ops and nn.functional  # which imports all that ops does not
    for name in ops.__all__:
        # A module of the same name, imported later than the function, would take its place.
        assert inspect.isfunction(getattr(ops, name)), name
        assert getattr(ops, name).__doc__, name


def test_no_module_stands_where_a_function_is_looked_for():
    for name in nn.functional.__all__:
        assert not inspect.ismodule(getattr(ops, name, None)), name


def test_second_names():
    assert ops.abs is ops.absolute and ops.amax is ops.max and ops.amin is ops.min
    assert ops.true_divide is ops.divide and ops.mod is ops.remainder


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.take(x, 5, 0),
        lambda x: ops.index_select(x, 0, [5]),
        lambda x: ops.take_along_axis(x, np.array([[5]]), 0),
        lambda x: ops.gather(x, 0, np.array([[5]])),
        lambda x: ops.nonzero(x[0, 0]),
        lambda x: ops.diagonal(x[0]),
        lambda x: ops.trace(x[0]),
        lambda x: ops.fliplr(x[0]),
        lambda x: ops.broadcast_to(x, 3),
        lambda x: ops.concatenate([x, x], None),
        lambda x: ops.moveaxis(x, None, 0),
        lambda x: ops.expand_dims(x, None),
        lambda x: ops.swapaxes(x, (0,), 1),
        lambda x: ops.pad(x, 1, constant_values=(1, 2)),
        lambda x: ops.masked_fill(x, np.ones((2, 2), int), 0),
        lambda x: ops.masked_fill(x, True, "a"),
        lambda x: ops.topk(x, 1.5),
        lambda x: ops.tile(x, "a"),
        lambda x: ops.tril(x, "a"),
        lambda x: ops.split(x, [0.5]),
        lambda x: ops.chunk(x, 1.5),
        lambda x: ops.diff(x, "a"),
        lambda x: ops.tensordot(x, x, None),
        lambda x: ops.astype(x, "no such"),
    ],
)
def test_messages_name_what_was_called(call):
    name = call.__code__.co_names[1]
    with pytest.raises(ArgumentError, match=f"^{name}"):
        call(tensor(np.ones((2, 2))))
