"""Parameter is a Tensor that requires grad."""

import copy
import pickle

import numpy as np
import pytest

from psframework.autograd import Tensor, tensor
from psframework.errors import AutogradError
from psframework.nn import Parameter


def test_requires_grad_and_shares_its_array() -> None:
    array = np.zeros(3, np.float32)
    parameter = Parameter(array)
    assert isinstance(parameter, Tensor) and parameter.requires_grad and parameter.is_leaf
    assert parameter.data is array


def test_takes_a_tensors_array_without_its_graph() -> None:
    source = tensor(np.ones(3), requires_grad=True)
    parameter = Parameter(source * 2)
    assert parameter.is_leaf
    np.testing.assert_array_equal(parameter.data, [2, 2, 2])


def test_frozen() -> None:
    assert not Parameter(np.zeros(3, np.int64), requires_grad=False).requires_grad
    with pytest.raises(AutogradError, match="floating"):
        Parameter(np.zeros(3, np.int64))


def test_repr_says_what_it_is() -> None:
    assert repr(Parameter(np.zeros(1))).startswith("Parameter containing:\ntensor(")


def test_copies_are_leaves_of_their_own() -> None:
    parameter = Parameter(np.zeros(3))
    parameter.grad = parameter.grad_buffer = np.ones(3)
    parameter.register_hook(lambda gradient: gradient * 2)
    for twin in (copy.deepcopy(parameter), pickle.loads(pickle.dumps(parameter))):
        assert type(twin) is Parameter and twin.requires_grad and twin.is_leaf
        assert twin.grad is None and twin.grad_buffer is None and twin.leaf_hooks is None
        twin.data[0] = 5
    assert parameter.data[0] == 0
    shared = copy.deepcopy([parameter, parameter])
    assert shared[0] is shared[1]
    assert not copy.deepcopy(Parameter(np.zeros(1), requires_grad=False)).requires_grad
