"""psf.ops: what is public, and that it is what it seems."""

import inspect

import psframework as psf
from psframework import nn, ops


def test_every_name_is_a_documented_function():
    assert psf.ops is ops and nn.functional  # which imports all that ops does not
    for name in ops.__all__:
        # A module of the same name, imported later than the function, would take its place.
        assert inspect.isfunction(getattr(ops, name)), name
        assert getattr(ops, name).__doc__, name


def test_second_names():
    assert ops.abs is ops.absolute and ops.amax is ops.max and ops.amin is ops.min
    assert ops.true_divide is ops.divide and ops.mod is ops.remainder
