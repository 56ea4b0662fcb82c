"""Module: registration by attribute, names and order as torch's, loading that is strict and in place."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from psframework.autograd import Tensor, tensor
from psframework.errors import ArgumentError, ModelMismatch
from psframework.nn import Embedding, Linear, Module, MultiheadAttention, Parameter, Sequential


class Block(Module):
    def __init__(self, size: int, *, scale: float = 1.0):
        self.scale = scale
        self.inner = Linear(size, size)
        self.weight = Parameter(np.full(size, 2.0, np.float32))
        self.register_buffer("count", np.zeros(1, np.int64))
        self.register_buffer("cache", np.zeros(1), persistent=False)
        self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x) * self.weight * self.scale


class Net(Module):
    def __init__(self) -> None:
        self.first = Block(3)
        self.second = Block(3, scale=0.5)
        self.second.inner.weight = self.first.inner.weight  # shared

    def forward(self, x: Tensor) -> Any:
        return self.second(self.first(x))


NAMES = [
    "first.weight",
    "first.count",
    "first.inner.weight",
    "first.inner.bias",
    "second.weight",
    "second.count",
    "second.inner.weight",
    "second.inner.bias",
]


def test_names_and_order_of_a_state_dict_are_torchs() -> None:
    assert list(Net().state_dict()) == NAMES
    assert list(Net().state_dict(prefix="net.")) == [f"net.{name}" for name in NAMES]


def test_shared_parameters_count_once() -> None:
    net = Net()
    names = [name for name, _ in net.named_parameters()]
    assert names == [n for n in NAMES if "count" not in n and n != "second.inner.weight"]
    assert [n for n, _ in net.named_parameters(remove_duplicate=False)] == [
        n for n in NAMES if "count" not in n
    ]
    assert len(list(net.parameters())) == 5
    assert [n for n, _ in net.first.named_parameters(recurse=False)] == ["weight"]


def test_traversal() -> None:
    net = Net()
    assert [n for n, _ in net.named_modules()] == ["", "first", "first.inner", "second", "second.inner"]
    assert list(net.children()) == [net.first, net.second]
    assert [n for n, _ in net.named_buffers()] == [
        "first.count", "first.cache", "second.count", "second.cache",
    ]  # fmt: skip
    assert len(list(net.buffers(recurse=False))) == 0
    seen: list[Module] = []
    net.apply(seen.append)
    assert seen == [net.first.inner, net.first, net.second.inner, net.second, net]


def test_forward_and_gradients_reach_all_parameters() -> None:
    net = Net()
    net(tensor(np.ones((2, 3), np.float32))).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())
    net.zero_grad(set_to_none=False)
    assert all(not np.asarray(p.grad).any() for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())


def test_a_buffer_that_is_registered_again_keeps_its_place() -> None:
    module = Module()
    for name, persistent in (("a", True), ("b", True), ("a", True), ("b", False), ("b", True)):
        module.register_buffer(name, np.ones(len(module.state_dict())), persistent)
    assert list(module.state_dict()) == ["a", "b"] and module.a.shape == (2,)


def test_sparse_gradients_are_forgotten_not_filled() -> None:
    layer = Embedding(5, 2, sparse=True)
    layer(np.array([1])).sum().backward()
    layer.zero_grad(set_to_none=False)
    assert layer.weight.grad is None


def test_arguments_that_no_constructor_takes_are_refused() -> None:
    class Plain(Module):
        pass

    with pytest.raises(TypeError):
        Plain(3)


def test_modes() -> None:
    net = Net()
    assert net.training
    assert net.eval() is net and not net.second.inner.training
    net.train()
    assert net.second.inner.training
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())


def test_constructor_arguments_are_kept() -> None:
    block = Block(3, scale=0.5)
    arguments, keywords = block._constructor
    assert (arguments, keywords) == ((3,), {"scale": 0.5})
    again = type(block)(*arguments, **keywords)
    assert list(again.state_dict()) == list(block.state_dict())


def test_assignment_registers_replaces_and_removes() -> None:
    block = Block(3)
    replacement = Parameter(np.zeros(3, np.float32))
    block.weight = replacement
    assert dict(block.named_parameters())["weight"] is replacement
    block.bias = Parameter(np.zeros(3, np.float32))
    assert [n for n, _ in block.named_parameters()] == ["weight", "bias", "inner.weight", "inner.bias"]
    block.count = np.ones(1, np.int64)
    assert block.state_dict()["count"] == 1
    block.weight = None
    del block.bias
    block.inner = None
    assert list(block.state_dict()) == ["count"]


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda m: setattr(m, "weight", np.zeros(3)), "'weight' is a parameter: assign an nn.Parameter"),
        (
            lambda m: setattr(m, "inner", m.inner(np.ones((1, 3)))),
            "'inner' is a submodule: assign",
        ),
        (lambda m: setattr(m, "count", 3), "'count' is a buffer: assign an array"),
        (lambda m: m.register_parameter("w", tensor(np.zeros(1))), "parameter 'w' must be an nn.Parameter"),
        (lambda m: m.add_module("x", 3), "submodule 'x' must be a Module"),
        (lambda m: m.register_buffer("a.b", np.zeros(1)), "'a.b' cannot name a part"),
        (lambda m: m.register_buffer("x", [1]), "buffer 'x' must be an array"),
        (lambda m: setattr(m, "forward", Parameter(np.zeros(1))), "Block.forward exists already"),
        (lambda m: Module()(1), "Module defines no forward"),
        (lambda m: m.get_submodule("inner.x"), "no submodule 'inner.x': Linear has no submodules"),
        (lambda m: m.get_submodule("outer"), "no submodule 'outer': Block has inner"),
        (lambda m: m.get_parameter("inner.gain"), "no parameter 'inner.gain': Linear has weight, bias"),
        (lambda m: m.get_parameter("bias"), "no parameter 'bias': Block has weight"),
        (lambda m: m.get_buffer("weight"), "no buffer 'weight': Block has count, cache"),
    ],
)
def test_misuse_is_refused(act: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        act(Block(3))


def test_state_dict_is_a_copy_unless_asked() -> None:
    block = Block(3)
    copied, live = block.state_dict(), block.state_dict(copy=False)
    block.weight.data[...] = 9
    assert copied["weight"][0] == 2 and live["weight"] is block.weight.data


def test_load_is_in_place_and_keeps_the_dtype() -> None:
    source, target = Net(), Net()
    arrays = target.state_dict(copy=False)
    versions = [p.version for p in target.parameters()]
    result = target.load_state_dict({k: v.astype(np.float64) for k, v in source.state_dict().items()})
    assert result == ([], [])
    for name, array in target.state_dict(copy=False).items():
        assert array is arrays[name] and array.dtype == source.state_dict()[name].dtype
        np.testing.assert_array_equal(array, source.state_dict()[name])
    assert all(p.version > before for p, before in zip(target.parameters(), versions))


def test_load_takes_tensors() -> None:
    block = Block(3)
    block.load_state_dict({"weight": tensor(np.ones(3))}, strict=False)
    assert (block.weight.data == 1).all()


def test_a_state_that_does_not_fit_is_refused_whole() -> None:
    net = Net()
    before = net.state_dict()
    state = {name: array + 1 for name, array in before.items()}
    state["second.weight"] = np.zeros(7)
    del state["first.count"]
    state["third"] = np.zeros(1)
    with pytest.raises(ModelMismatch) as caught:
        net.load_state_dict(state)
    message = str(caught.value)
    for words in ("does not fit Net", "second.weight has shape (7,), here (3,)", "first.count is missing"):
        assert words in message
    assert "third is unexpected" in message
    np.testing.assert_equal(net.state_dict(), before)


def test_load_without_strict_reports_what_it_left_aside() -> None:
    block = Block(3)
    keys = block.load_state_dict({"weight": np.ones(3), "more": np.ones(3)}, strict=False)
    assert keys.unexpected_keys == ["more"]
    assert keys.missing_keys == ["count", "inner.weight", "inner.bias"]
    assert (block.weight.data == 1).all()
    with pytest.raises(ModelMismatch, match="weight has shape"):
        block.load_state_dict({"weight": np.ones(4)}, strict=False)


def test_deepcopy_is_independent() -> None:
    net = Net()
    twin = copy.deepcopy(net)
    assert list(twin.state_dict()) == NAMES
    assert twin.first.inner.weight is twin.second.inner.weight
    twin.first.weight.data[...] = 5
    assert net.first.weight.data[0] == 2
    assert twin.first.weight.requires_grad


def test_pickled_modules_are_whole() -> None:
    net = Sequential(Linear(2, 3), Linear(3, 1, bias=False))
    net[1].weight = net[0].weight
    net[0].register_forward_hook(print)
    twin = pickle.loads(pickle.dumps(net))
    assert twin[1].weight is twin[0].weight and twin._constructor[0][0] is twin[0]
    assert len(twin[0]._hooks.after) == 1 and twin[1]._hooks is None


def test_hooks_of_a_copy_are_its_own() -> None:
    layer = Linear(2, 2)
    calls: list[Module] = []
    handle = layer.register_forward_pre_hook(lambda module, args: calls.append(module))
    twin = copy.deepcopy(layer)
    handle.remove()
    layer(np.ones((1, 2), np.float32)), twin(np.ones((1, 2), np.float32))
    assert calls == [twin]


def test_parts_by_dotted_name() -> None:
    net = Net()
    assert net.get_submodule("") is net and net.get_submodule("first.inner") is net.first.inner
    assert net.get_parameter("second.inner.bias") is net.second.inner.bias
    assert net.get_buffer("first.count") is net.first.count


def test_repr_shows_the_tree() -> None:
    text = repr(Sequential(Linear(2, 3), Sequential(Linear(3, 1, bias=False))))
    assert text == (
        "Sequential(\n"
        "  (0): Linear(in_features=2, out_features=3, bias=True)\n"
        "  (1): Sequential(\n"
        "    (0): Linear(in_features=3, out_features=1, bias=False)\n"
        "  )\n"
        ")"
    )


def test_repr_of_a_module_with_arguments_and_submodules() -> None:
    assert repr(MultiheadAttention(4, 2)) == (
        "MultiheadAttention(\n  4, 2\n  (out_proj): Linear(in_features=4, out_features=4, bias=True)\n)"
    )
