"""What Tensors are written as, and what is refused with which reason."""

import asyncio
import collections
import decimal
import functools
import pathlib
import threading

import numpy as np
import pytest

import psframework as psf
from psframework.rpc.values import kinds
from psframework.rpc.values.arguments import CannotTravel, encode
from psframework.rpc.values.journey import Journey


class MyFloat(float):
    pass


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.datetime64("2026-11-30"), "numpy.datetime64"),
        (np.longdouble(1), "longdouble"),
        (np.dtype("U3"), "dtype <U3"),
        (np.random.Generator(np.random.MT19937(1)), "generator of MT19937"),
        (collections.OrderedDict(a=1), r"OrderedDict, a subclass of dict.*pass dict\("),
        (collections.Counter("a"), r"Counter.*pass dict\("),
        (collections.deque([1]), "collections.deque can't travel"),
        (MyFloat(1), r"MyFloat, a subclass of float.*pass float\("),
        (decimal.Decimal(1), r"decimal\.Decimal can't travel.*psf\.register_type"),
        (pathlib.Path("x"), "PosixPath can't travel"),
        (lambda: 1, "lambda"),
        (functools.partial(max, 1), "functools.partial can't travel"),
        (len, r"builtins\.len is not registered"),
        (threading.Lock(), "lock can't travel"),
        (asyncio, "module can't travel"),
        (ValueError("x"), "ValueError can't travel"),
        ((i for i in ()), "generator can't travel"),
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)  # fmt: skip
def test_refused_with_the_reason(value, reason):
    with pytest.raises(CannotTravel, match=reason):
        encode(value, Journey())


def test_a_tensor_is_written_as_a_constant():
    tensor = psf.tensor([1.0, 2.0], requires_grad=True)
    message = encode(tensor * 2, Journey())
    assert message.outline[:2] == bytes([kinds.TENSOR, kinds.ARRAY])
