import subprocess
import sys
import types

import ml_dtypes
import numpy as np
import pytest

from psframework import backend
from psframework.errors import ArgumentError


def test_xp_of_arrays():
    assert backend.xp(np.ones(2)) is np
    assert backend.xp(np.ones((2, 2)).view(np.matrix)) is np
    assert backend.xp(np.float32(1)) is np


@pytest.mark.parametrize("value", [1, [1.0], "a", None, object()])
def test_what_is_no_array(value):
    assert not backend.is_array(value)
    with pytest.raises(ArgumentError, match="is not an array"):
        backend.xp(value)


def test_is_array():
    assert backend.is_array(np.ones(2)) and not backend.is_array(np.float32(1))
    assert isinstance(backend.as_array(np.float32(1)), np.ndarray)
    assert backend.asnumpy([1, 2]).tolist() == [1, 2]
    assert backend.array_like([1, 2], np.ones(1, np.float32), np.dtype(np.int8)).dtype == np.int8


def test_another_kind_of_array(monkeypatch):
    monkeypatch.setattr(backend, "_namespaces", dict(backend._namespaces))

    class DeviceArray:
        def __init__(self, host):
            self.host = host

    module = types.SimpleNamespace(asnumpy=lambda array: array.host)
    backend.register_namespace(DeviceArray, module)
    host = np.ones(2)
    assert backend.xp(DeviceArray(host)) is module and backend.is_array(DeviceArray(host))
    assert backend.asnumpy(DeviceArray(host)) is host and backend.asnumpy(host) is host


@pytest.mark.parametrize(
    "name",
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ],
)
def test_dtype_names_there_and_back(name):
    dtype = backend.dtype_from_name(name)
    assert backend.dtype_name(dtype) == name
    assert backend.dtype_name(np.zeros(1, dtype).dtype) == name


@pytest.mark.parametrize("dtype", [object, "U3", "M8[s]", [("a", "f4")]])
def test_dtypes_without_a_name(dtype):
    with pytest.raises(ArgumentError, match="not supported: use one of"):
        backend.dtype_name(dtype)


def test_names_without_a_dtype():
    with pytest.raises(ArgumentError, match="'<V2' is not supported"):
        backend.dtype_from_name("<V2")


def test_kinds_of_dtypes():
    floating = [n for n in ("float16", "bfloat16", "float32", "float64") if backend.is_floating(np.dtype(n))]
    assert floating == ["float16", "bfloat16", "float32", "float64"]
    assert not backend.is_floating(np.dtype("complex64")) and not backend.is_floating(np.dtype(">f4"))
    assert backend.is_narrow(backend.bfloat16) and not backend.is_narrow(np.dtype("float32"))
    wide = np.ones(1, np.float32)
    assert backend.widen(wide) is wide and backend.widen(np.ones(1, ml_dtypes.bfloat16)).dtype == np.float32


def test_erf():
    import math

    x = np.linspace(-7, 7, 2001)
    exact = np.array([math.erf(v) for v in x])
    np.testing.assert_array_equal(backend.erf(x), exact)
    single = backend.erf(x.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, exact, rtol=1e-6, atol=1e-7)
    for shape in ((), (0, 3), (2, 1)):
        for dtype in (np.float32, np.float64):
            assert backend.erf(np.zeros(shape, dtype)).shape == shape


def test_cupy_is_loaded_only_when_asked_for():
    code = "import sys, psframework.autograd as a, psframework.backend as b; assert 'cupy' not in sys.modules"
    code += "; b.cupy(); a.tensor([1.0])"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
