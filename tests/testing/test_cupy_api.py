import re

import numpy as np
import pytest

from psframework.testing import cupy_api


def test_what_cupy_has():
    assert re.fullmatch(r"CuPy \d+\.\d+\.\d+", cupy_api.version())
    for name in (
        "sum",
        "where",
        "linalg.norm",
        "lib.stride_tricks.as_strided",
        "ndarray.sum",
        "random.default_rng",
    ):
        cupy_api.require(name)
    for name in ("errstate", "block", "frompyfunc", "broadcast_shapes", "ndarray.newbyteorder"):
        with pytest.raises(AttributeError, match=rf"CuPy .* has no {re.escape(name)}"):
            cupy_api.require(name)
    assert cupy_api.is_attribute("shape") and not cupy_api.is_attribute("sum")


def test_arguments():
    cupy_api.check_call("sum", (1, 2), {"keepdims": True})
    cupy_api.check_call("einsum", (1,) * 9, {"optimize": True})
    cupy_api.check_call("exp", (1,), {"anything": 1})  # compiled: its parameters are not known
    with pytest.raises(TypeError, match="does not take initial="):
        cupy_api.check_call("sum", (1,), {"initial": 2})
    with pytest.raises(TypeError, match="does not take 6 arguments"):
        cupy_api.check_call("sum", (1,) * 6, {})


def test_ufunc_methods():
    cupy_api.check_ufunc_method("add", "reduce", (np.ones(2), 0), {"keepdims": True})
    cupy_api.check_ufunc_method("maximum", "at", (1, 2, 3), {})
    for ufunc, method in (
        ("maximum", "reduce"),
        ("multiply", "reduceat"),
        ("divide", "at"),
        ("maximum", "accumulate"),
    ):
        with pytest.raises(NotImplementedError, match=rf"{ufunc}\.{method} is not supported"):
            cupy_api.check_ufunc_method(ufunc, method, (1, 2), {})
    with pytest.raises(TypeError, match="does not take initial="):
        cupy_api.check_ufunc_method("add", "reduce", (1,), {"initial": 0})
