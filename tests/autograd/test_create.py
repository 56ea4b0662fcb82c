import ml_dtypes
import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.errors import ArgumentError, AutogradError


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "int64", "float16", "float32", "float64", ml_dtypes.bfloat16]
)
def test_tensor_copies_and_keeps_the_dtype(dtype):
    data = np.ones((2, 3), dtype)
    t = tensor(data)
    assert t.dtype == data.dtype and not np.shares_memory(t.data, data)
    assert tensor(t).data is not t.data


def test_tensor_of_lists_numbers_and_other_layouts():
    assert tensor([[1, 2], [3, 4]]).dtype == np.int64
    assert tensor(2.5).shape == ()
    assert tensor([1, 2], dtype=np.float32).dtype == np.float32
    swapped = tensor(np.arange(3, dtype=">f4"), True)
    assert swapped.dtype == np.float32 and swapped.tolist() == [0, 1, 2]
    assert tensor(np.asfortranarray(np.ones((2, 3)))).data.flags.c_contiguous


@pytest.mark.parametrize("data", ["text", [object()], [[1], [1, 2]], np.array(["a"]), {}])
def test_what_is_no_tensor(data):
    with pytest.raises(ArgumentError):
        tensor(data)


def test_lists_of_integers_cannot_require_grad():
    with pytest.raises(AutogradError, match="only floating dtypes"):
        tensor([1, 2], requires_grad=True)


def test_a_dtype_that_is_none():
    for data in (np.ones(2), [1, 2]):
        with pytest.raises(ArgumentError, match=r"tensor: .*'no such'"):
            tensor(data, dtype="no such")
