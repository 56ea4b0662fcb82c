import ml_dtypes
import numpy as np
import pytest

from psframework.autograd import Tensor, tensor
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


def test_hash_is_identity():
    a, b = tensor([1.0]), tensor([1.0])
    assert len({a, b, a}) == 2 and {a: 1}[a] == 1


def test_detach_shares_memory_without_a_graph():
    t = tensor([1.0, 2.0], True)
    d = (t * 2).detach()
    assert not d.requires_grad and d.is_leaf
    same = t.detach()
    same += 1
    assert t.data is same.data and t.version == 1


def test_methods_of_arrays():
    t = tensor([[1.0, -2.0], [3.0, 4.0]], True)
    for value, expected in (
        (t.maximum(0), np.maximum(t.data, 0)),
        (t.minimum(0), np.minimum(t.data, 0)),
        (t.clip(0, 3), t.data.clip(0, 3)),
        (t.argmax(axis=1), t.data.argmax(axis=1)),
        (t.mean(axis=0, keepdims=True), t.data.mean(axis=0, keepdims=True)),
        (t.std(), t.data.std()),
        (t.abs().log(), np.log(np.abs(t.data))),
        (t.relu(), np.maximum(t.data, 0)),
        (t.swapaxes(0, 1), t.data.T),
        (t.flatten().squeeze(), t.data.reshape(-1)),
    ):
        assert isinstance(value, Tensor)
        np.testing.assert_array_equal(value.data, expected)


@pytest.mark.parametrize("data", ["text", [object()], [[1], [1, 2]], np.array(["a"]), {}])
def test_what_is_no_tensor(data):
    with pytest.raises(ArgumentError):
        tensor(data)


def test_lists_of_integers_cannot_require_grad():
    with pytest.raises(AutogradError, match="only floating dtypes"):
        tensor([1, 2], requires_grad=True)
