import numpy as np
import pytest

from psframework import backend
from psframework.errors import ArgumentError


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
