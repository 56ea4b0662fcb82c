"""Containers."""

import copy
import pickle

import numpy as np
import pytest

from psframework.autograd import Tensor
from psframework.errors import ArgumentError
from psframework.nn import Flatten, Linear, Module, ModuleList, Parameter, ReLU, Sequential
from psframework.nn.layers.container import Identity, ModuleDict, ParameterDict, ParameterList


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


def test_module_list_is_a_sequence() -> None:
    layers = [Linear(2, 2) for _ in range(4)]
    modules = ModuleList(layers[:1]).extend(layers[1:])
    assert list(modules[1:3]) == layers[1:3] and modules[-1] is layers[3]
    modules[1] = ReLU()
    assert isinstance(modules[1], ReLU) and len(modules) == 4
    assert [name for name, _ in modules.named_parameters()][2] == "2.weight"


def test_module_dict() -> None:
    net = ModuleDict({"hidden": Linear(2, 3), "out": Linear(3, 1)})
    net["out"] = Linear(3, 2)
    assert list(net) == list(net.keys()) == ["hidden", "out"] and len(net) == 2 and "out" in net
    assert list(net.values()) == [net["hidden"], net["out"]] == [module for _, module in net.items()]
    assert net["out"].weight.shape == (2, 3)
    assert list(net.state_dict()) == ["hidden.weight", "hidden.bias", "out.weight", "out.bias"]
    del net["hidden"]
    assert "hidden" not in net
    with pytest.raises(ArgumentError, match="no submodule 'hidden': ModuleDict has out"):
        net["hidden"]
    with pytest.raises(ArgumentError, match=r"ModuleDict.train exists already"):
        net["train"] = ReLU()


def test_parameter_list_and_dict() -> None:
    class Net(Module):
        def __init__(self) -> None:
            self.rows = ParameterList(np.full(2, float(i)) for i in range(2))
            self.named = ParameterDict({"scale": Parameter(np.ones(1)), "shift": Tensor(np.zeros(1))})

    net = Net()
    net.rows.append(np.ones(3))
    net.rows[0] = np.full(2, 5.0)
    assert [name for name, _ in net.named_parameters()] == [
        "rows.0", "rows.1", "rows.2", "named.scale", "named.shift",
    ]  # fmt: skip
    assert len(net.rows) == 3 and net.rows[0].data[0] == 5 and next(iter(net.rows)) is net.rows[0]
    assert len(net.named) == 2 and list(net.named) == ["scale", "shift"] and "scale" in net.named
    assert dict(net.named.items())["scale"] is net.named["scale"]
    del net.named["scale"]
    with pytest.raises(ArgumentError, match="no parameter 'scale': ParameterDict has shift"):
        net.named["scale"]


def test_identity() -> None:
    x = np.ones(3)
    assert Identity(7, eps=1)(x) is x and repr(Identity()) == "Identity()"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sequential(3),
        lambda: ModuleList([3]),
        lambda: Sequential().append(3),
        lambda: ModuleDict({"a": 3}),
    ],
)
def test_only_modules(make) -> None:
    with pytest.raises(ArgumentError, match="takes modules, not int"):
        make()
    with pytest.raises(ArgumentError, match=r"takes modules, not list: unpack it, Sequential\(\*layers\)"):
        Sequential([Linear(1, 1)])  # type: ignore[arg-type]


def places(modules: Sequential | ModuleList) -> list[str]:
    return [f"{name}:{type(module).__name__}" for name, module in modules.named_children()]


@pytest.mark.parametrize("make", [Sequential, lambda *modules: ModuleList(modules)])
def test_modules_are_inserted_replaced_and_taken_out(make) -> None:
    modules = make(ReLU(), Linear(2, 2))
    modules.insert(0, Flatten())
    assert places(modules) == ["0:Flatten", "1:ReLU", "2:Linear"]
    modules[-1] = ReLU()
    taken = modules.pop(0)
    assert isinstance(taken, Flatten) and places(modules) == ["0:ReLU", "1:ReLU"]
    modules.extend([Linear(2, 2), Flatten()])
    del modules[:2]
    assert places(modules) == ["0:Linear", "1:Flatten"]
    with pytest.raises(ArgumentError, match="takes modules"):
        modules.insert(0, 3)


def test_what_is_appended_to_a_part_replaces_nothing() -> None:
    part = Sequential(Flatten(), ReLU(), ReLU())[1:]
    assert places(part.append(Linear(2, 2))) == ["1:ReLU", "2:ReLU", "3:Linear"]


def test_module_dicts_give_their_modules_back() -> None:
    layer = ReLU()
    modules = ModuleDict({"a": layer, "b": Flatten()})
    assert modules.pop("a") is layer and list(modules) == ["b"]


def test_the_constructors_arguments_are_what_a_container_holds_now() -> None:
    model = Sequential(Linear(2, 3), ReLU())
    model[0] = Linear(2, 5)
    model.append(Flatten())
    parameters = ParameterDict({"a": np.ones(2)})
    parameters["b"] = np.zeros(3)
    for container in (model, model[1:], ModuleList(model), ModuleDict({"a": model}), parameters):
        args, kwargs = container._constructor
        assert repr(type(container)(*args, **kwargs)) == repr(container)
        assert list(type(container)(*args, **kwargs).state_dict()) == list(container.state_dict())


def test_a_subclass_is_made_of_its_own_arguments() -> None:
    class Net(Sequential):
        def __init__(self, width: int):
            super().__init__(Linear(2, width))

    assert Net(5)._constructor == ((5,), {})


@pytest.mark.parametrize(
    "container",
    [ModuleList(Linear(2, 2) for _ in range(2)), ParameterList(np.ones(2) for _ in range(2))],
    ids=lambda container: type(container).__name__,
)
def test_containers_made_of_generators_are_copied(container: Module) -> None:
    for twin in (copy.deepcopy(container), pickle.loads(pickle.dumps(container))):
        np.testing.assert_equal(twin.state_dict(), container.state_dict())
        args, kwargs = twin._constructor
        assert len(type(container)(*args, **kwargs)) == 2
