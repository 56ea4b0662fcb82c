"""Hooks of modules: what they see, what they may replace, and that they end."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from psframework.autograd import Tensor, no_grad, tensor
from psframework.errors import ArgumentError
from psframework.nn import Linear, Module, Sequential, Tanh
from psframework.nn.hooks import HookHandle, ModuleHooks, args_and_kwargs

X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)


class Pair(Module):
    """Two inputs, two outputs."""

    def forward(self, a: Tensor, b: Any, *, scale: float = 1.0) -> Any:
        return a * b * scale, a + b


def test_hooks_run_in_order_around_the_forward() -> None:
    layer, seen = Linear(3, 2), []
    layer.register_forward_hook(lambda m, args, out: seen.append(("after", m, args[0] is X, out.shape)))
    layer.register_forward_pre_hook(lambda m, args: seen.append(("second", m)))
    layer.register_forward_pre_hook(lambda m, args: seen.append(("first", m)), prepend=True)
    layer(X)
    assert seen == [("first", layer), ("second", layer), ("after", layer, True, (2, 2))]


def test_hooks_replace_arguments_and_outputs() -> None:
    layer = Linear(3, 2)
    plain = layer(X)
    with layer.register_forward_pre_hook(lambda m, args: args[0] * 2):
        doubled = layer(X)
    with layer.register_forward_hook(lambda m, args, out: out * 2):
        np.testing.assert_array_equal(layer(X).data, plain.data * 2)
    np.testing.assert_allclose(doubled.data - layer.bias.data, 2 * (plain.data - layer.bias.data), rtol=1e-6)
    np.testing.assert_array_equal(layer(X).data, plain.data)


def test_hooks_with_keywords() -> None:
    pair, seen = Pair(), []
    pair.register_forward_pre_hook(lambda m, args, kwargs: (args, {"scale": 3.0}), with_kwargs=True)
    pair.register_forward_hook(lambda m, args, kwargs, out: seen.append(kwargs), with_kwargs=True)
    assert pair(tensor(2.0), 1.0, scale=7.0)[0].item() == 6
    assert seen == [{"scale": 3.0}]


def test_removed_hooks_are_not_called_again() -> None:
    layer, calls = Linear(3, 2), []
    hook = calls.append
    handles = [layer.register_forward_pre_hook(lambda m, args, n=n: hook(n)) for n in range(3)]
    layer(X)
    handles[1].remove()
    handles[1].remove()
    layer(X)
    assert calls == [0, 1, 2, 0, 2]


def test_a_hook_may_remove_itself() -> None:
    layer, calls = Linear(3, 2), []

    def once(module: Module, args: Any) -> None:
        calls.append(1)
        handle.remove()

    handle = layer.register_forward_pre_hook(once)
    layer.register_forward_pre_hook(lambda m, args: calls.append(2))
    layer(X), layer(X)
    assert calls == [1, 2, 2]


def test_backward_hooks_see_both_ends() -> None:
    model = Sequential(Linear(3, 4), Tanh(), Linear(4, 2))
    x, seen = tensor(X, True), []
    model[2].register_full_backward_hook(lambda m, into, out: seen.append((m, into, out)))
    model(x).sum().backward()
    (module, (into,), (out,)) = seen[0]
    assert module is model[2] and len(seen) == 1
    np.testing.assert_array_equal(out, np.ones((2, 2)))
    np.testing.assert_allclose(into, out @ model[2].weight.data, rtol=1e-6)


def test_backward_hooks_do_not_change_gradients_unless_they_answer() -> None:
    model = Sequential(Linear(3, 4), Tanh(), Linear(4, 2))

    def gradients() -> list[np.ndarray]:
        x = tensor(X, True)
        model.zero_grad()
        (model(x) ** 2).sum().backward()
        return [x.grad, *(p.grad for p in model.parameters())]

    plain = gradients()
    with model[1].register_full_backward_hook(lambda m, into, out: None):
        for ours, theirs in zip(gradients(), plain):
            np.testing.assert_array_equal(ours, theirs)
    with model[1].register_full_backward_hook(lambda m, into, out: (into[0] * 0,)):
        stopped = gradients()
    assert not stopped[0].any() and not stopped[1].any()
    np.testing.assert_array_equal(stopped[3], plain[3])


def test_backward_hooks_of_several_inputs_and_outputs() -> None:
    pair, seen = Pair(), []
    pair.register_full_backward_hook(lambda m, into, out: seen.append((into, out)))
    a, b = tensor(2.0, True), tensor(5.0, True)
    product, _ = pair(a, b)
    product.backward()
    ((into, out),) = seen
    assert [float(g) for g in into] == [5, 2] and float(out[0]) == 1 and out[1] is None
    product, total = pair(a, 3.0)
    (product + total).backward()
    assert seen[1][0][1] is None and float(seen[1][0][0]) == 4
    assert a.grad == 5 + 4 and b.grad == 2


def test_backward_hooks_without_differentiable_inputs() -> None:
    layer, seen = Linear(3, 2), []
    layer.register_full_backward_hook(lambda m, into, out: seen.append((into, out[0].shape)))
    layer(X).sum().backward()
    assert seen == [((None,), (2, 2))]
    with no_grad():
        assert not layer(tensor(X)).requires_grad
    assert len(seen) == 1 and layer.weight.grad is not None


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda m: m.register_forward_hook(3), "callable, not int"),
        (lambda m: args_and_kwargs([1]), r"None or a tuple \(args, kwargs\), not list"),
    ],
)
def test_bad_hooks(act: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        act(Linear(3, 2))


def test_a_backward_hook_that_answers_too_much() -> None:
    layer = Linear(3, 2)
    layer.register_full_backward_hook(lambda m, into, out: (None, None))
    with pytest.raises(ArgumentError, match="hook of Linear returned 2 gradients for 1 inputs"):
        layer(tensor(X, True)).sum().backward()


def test_the_list_of_hooks() -> None:
    hooks = ModuleHooks()
    handle = hooks.add("after", print, prepend=False)
    assert isinstance(handle, HookHandle) and len(hooks.after) == 1
    handle.remove()
    assert hooks.after == []


@pytest.mark.oracle
def test_backward_hooks_see_what_torchs_see() -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = Linear(3, 2), torch.nn.Linear(3, 2)
    ours.load_state_dict({name: value.detach().numpy() for name, value in theirs.state_dict().items()})
    found: list[Any] = []
    ours.register_full_backward_hook(lambda m, into, out: found.append((into, out)))
    theirs.register_full_backward_hook(lambda m, into, out: found.append((into, out)))
    x, y = tensor(X, True), torch.tensor(X, requires_grad=True)
    (ours(x) ** 2).sum().backward()
    (theirs(y) ** 2).sum().backward()
    for mine, other in zip(found[0], found[1]):
        np.testing.assert_allclose(mine[0], other[0].numpy(), rtol=1e-5)


def test_backward_hooks_keep_named_tuples() -> None:
    class Result(NamedTuple):
        double: Tensor
        kind: str

    class Doubling(Module):
        def forward(self, x: Tensor) -> Result:
            return Result(x * 2, "doubled")

    module, seen = Doubling(), []
    module.register_full_backward_hook(lambda m, into, outof: seen.append((into[0].tolist(), outof[1])))
    result = module(tensor(np.ones(2), requires_grad=True))
    assert isinstance(result, Result) and result.kind == "doubled"
    result.double.sum().backward()
    assert seen == [([2, 2], None)]
