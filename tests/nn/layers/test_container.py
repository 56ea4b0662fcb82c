"""Containers."""

import numpy as np
import pytest

from psframework.errors import ArgumentError
from psframework.nn import Flatten, Linear, Module, ModuleList, ReLU, Sequential


def test_sequential_applies_in_order() -> None:
    model = Sequential(Flatten(), Linear(4, 3), ReLU())
    x = np.random.default_rng(0).standard_normal((5, 2, 2)).astype(np.float32)
    expected = np.maximum(model[1](x.reshape(5, 4)).data, 0)
    np.testing.assert_array_equal(model(x).data, expected)
    assert list(model.state_dict()) == ["1.weight", "1.bias"]


def test_sequential_is_a_sequence() -> None:
    layers = [Linear(2, 2) for _ in range(4)]
    model = Sequential(*layers)
    assert len(model) == 4 and list(model) == layers and model[-1] is layers[3]
    part = model[1:3]
    assert isinstance(part, Sequential) and list(part) == layers[1:3]
    assert next(iter(part.state_dict())) == "1.weight"
    assert model.append(ReLU()) is model and len(model) == 5


def test_sequential_of_named_modules() -> None:
    model = Sequential({"hidden": Linear(2, 3), "out": Linear(3, 1)})
    assert [name for name, _ in model.named_children()] == ["hidden", "out"]


def test_empty_sequential_is_the_identity() -> None:
    x = np.ones(3)
    assert Sequential()(x) is x


def test_module_list() -> None:
    class Net(Module):
        def __init__(self) -> None:
            self.layers = ModuleList(Linear(2, 2) for _ in range(2))

    net = Net()
    net.layers.append(Linear(2, 3))
    assert len(net.layers) == 3 and net.layers[2].weight.shape == (3, 2)
    assert [name for name, _ in net.named_parameters()][:2] == ["layers.0.weight", "layers.0.bias"]
    assert len(list(net.layers)) == 3


@pytest.mark.parametrize(
    "make", [lambda: Sequential(3), lambda: ModuleList([3]), lambda: Sequential().append(3)]
)
def test_only_modules(make) -> None:
    with pytest.raises(ArgumentError, match="takes modules, not int"):
        make()
