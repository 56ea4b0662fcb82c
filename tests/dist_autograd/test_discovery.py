"""What of one process's graph takes part."""

from typing import Any

import numpy as np
import pytest

from psframework.autograd.engine import start
from psframework.autograd.function import Function
from psframework.autograd.recompute import recompute
from psframework.autograd.tensor import Tensor
from psframework.dist_autograd.context import Context, Contexts
from psframework.dist_autograd.discovery import Discovery
from psframework.dist_autograd.ids import TensorsId
from psframework.dist_autograd.pairs import Received, Sent
from psframework.errors import AutogradError, ContextMismatch, WireError

ME = 7


def came(context: Context, number: int, tensors: int = 1) -> tuple[Received, list[Tensor]]:
    message = context.arriving(TensorsId(9, number), ("bob", 9), "")
    return message, [message.take(index, np.ones(2)) for index in range(tensors)]


def goes(context: Context, number: int, *tensors: Tensor) -> Sent:
    sent = context.sent[TensorsId(ME, number)] = Sent(TensorsId(ME, number), "bob", "")
    for tensor in tensors:
        sent.add(tensor)
    return sent


def keys(*roots: Tensor) -> Any:
    return start(list(roots), None)[0]


@pytest.fixture
def context() -> Context:
    return Contexts(ME).open("me")


def test_only_what_the_roots_depend_on_is_asked_for(context: Context) -> None:
    first, (a, _, c) = came(context, 1, 3)
    _, (unused,) = came(context, 2)
    weight = Tensor(np.ones(2), requires_grad=True)
    unused * weight
    discovery = Discovery(context)
    asked = discovery.from_roots(keys((a * weight).sum(), (c + a).sum()))
    assert asked == discovery.asked == {first: {0, 2}}
    assert discovery.reached == {}


def test_a_root_may_be_a_leaf_or_what_came(context: Context) -> None:
    message = context.arriving(TensorsId(9, 1), ("bob", 9), "")
    root = message.take(0, np.ones(()))
    leaf = Tensor(np.ones(()), requires_grad=True)
    assert Discovery(context).from_roots(keys(root, leaf)) == {message: {0}}


def test_an_unused_tensor_of_a_used_message_is_not_walked(context: Context) -> None:
    one, (a,) = came(context, 1)
    two, (b,) = came(context, 2)
    sent = goes(context, 5, a * 2.0, b * 2.0)
    discovery = Discovery(context)
    assert discovery.from_message(sent.id, [1]) == {two: {0}}
    assert discovery.reached == {sent: {1}}
    assert discovery.from_message(sent.id, [0, 1]) == {one: {0}}
    assert discovery.reached == {sent: {0, 1}}
    assert discovery.from_message(sent.id, [0, 1]) == {}


def test_what_was_asked_once_is_not_asked_again(context: Context) -> None:
    message, (a, b) = came(context, 1, 2)
    shared = a * 2.0
    first, second = goes(context, 5, shared), goes(context, 6, shared * 3.0, b)
    discovery = Discovery(context)
    assert discovery.from_message(first.id, [0]) == {message: {0}}
    assert discovery.from_message(second.id, [0, 1]) == {message: {1}}
    assert discovery.asked == {message: {0, 1}}


def test_a_deep_graph_needs_no_stack(context: Context) -> None:
    message, (x,) = came(context, 1)
    for _ in range(5_000):
        x = x * 1.0
    assert Discovery(context).from_roots(keys(x.sum())) == {message: {0}}


@pytest.mark.parametrize(
    ("number", "tensors", "text"),
    [(99, [0], "no message 7.99 left"), (5, [1], "has 1 tensors, and not"), (5, [-1], "has 1 tensors")],
)
def test_messages_that_never_left(context: Context, number: int, tensors: list[int], text: str) -> None:
    goes(context, 5, Tensor(np.ones(2), requires_grad=True))
    with pytest.raises(WireError, match=text):
        Discovery(context).from_message(TensorsId(ME, number), tensors)


def test_a_freed_graph_is_found_before_anything_runs(context: Context) -> None:
    _, (a,) = came(context, 1)
    made = a * 2.0
    loss, sent = (made * 3.0).sum(), goes(context, 5, made)
    made._node.backward = None
    for walk in (
        lambda: Discovery(context).from_roots(keys(loss)),
        lambda: Discovery(context).from_message(sent.id, [0]),
    ):
        with pytest.raises(AutogradError, match=r"'multiply' was freed.*retain_graph=True"):
            walk()
    sent.node.backward = None
    with pytest.raises(AutogradError, match="'send' was freed"):
        Discovery(context).from_message(sent.id, [0])


def test_a_tensor_of_another_context(context: Context) -> None:
    _, (foreign,) = came(Contexts(8).open("eve"), 1)
    with pytest.raises(ContextMismatch, match=r"belongs to .*8\.1 of eve, but this is a backward of .*7\.1"):
        Discovery(context).from_roots(keys(foreign.sum()))


class Doubled(Function):
    """Users' code."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return 2 * gradient


def test_the_same_operations_are_of_one_kind(context: Context) -> None:
    x = Tensor(np.ones(2), requires_grad=True)
    kinds = []
    large = Tensor(np.ones(9), requires_grad=True)
    for root in (
        (x * 2.0).sum(),
        (x * 3.0).sum(),
        (x + 2.0).sum(),
        (x * 2.0 * 2.0).sum(),
        (large * 2.0).sum(),
    ):
        discovery = Discovery(context)
        discovery.from_roots(keys(root.sum()))
        kinds.append(discovery.kind)
    assert kinds[0] == kinds[1] and len(set(kinds)) == 4


@pytest.mark.parametrize("which", ["received", "root", "sent"])
def test_hooks_of_what_has_no_operation_are_noticed(context: Context, which: str) -> None:
    x = Tensor(np.ones(()), requires_grad=True)
    _, (h,) = came(context, 1)
    sent = goes(context, 2, x)
    (h if which == "received" else x).register_hook(lambda gradient: None)
    discovery = Discovery(context)
    if which == "sent":
        discovery.from_message(sent.id, [0])
    else:
        discovery.from_roots(keys(h.sum() if which == "received" else x))
    assert discovery.users


@pytest.mark.parametrize("which", ["ours", "function", "hook", "leaf's hook", "recomputed"])
def test_users_code_is_noticed(context: Context, which: str) -> None:
    x = Tensor(np.ones(2), requires_grad=True)
    y = x * 2.0
    if which == "function":
        y = Doubled.apply(y)
    elif which == "hook":
        y.register_hook(lambda gradient: None)
    elif which == "leaf's hook":
        x.register_hook(lambda gradient: None)
    elif which == "recomputed":
        y = recompute(lambda value: value * 3.0, y)
    discovery = Discovery(context)
    discovery.from_roots(keys(y.sum()))
    assert discovery.users == (which != "ours")
