"""The two ends of a message with tensors."""

from threading import get_ident
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from psframework.autograd.engine import backward
from psframework.autograd.node import Parts
from psframework.autograd.tensor import Tensor
from psframework.dist_autograd.context import Context
from psframework.dist_autograd.ids import ContextId, TensorsId
from psframework.dist_autograd.pairs import Received, Sent
from psframework.errors import AutogradError, WireError

ID = TensorsId(9, 4)


class Noting:
    """A runner that remembers."""

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.came: list[tuple[int, Any]] = []

    def arrived(self, message: Received, index: int, gradient: Any) -> None:
        self.came.append((index, gradient))


def received() -> Received:
    return Received(ID, Context(ContextId(7, 1), "ann"), ("bob", 9), "mod.fn")


def test_a_message_that_leaves_hands_gradients_to_what_made_its_tensors() -> None:
    leaf = Tensor(np.ones(2), requires_grad=True)
    made = leaf * 3.0
    sent = Sent(ID, "bob", "mod.fn")
    assert [sent.add(leaf), sent.add(made)] == [0, 1]
    assert sent.nbytes == 32
    assert list(sent.node.edges) == [leaf, made._node]
    assert sent.node.order > made._node.order  # it runs before what it depends on
    gradients = (np.ones(2), None)
    assert sent.node.backward(Parts(gradients)) is gradients
    assert str(sent) == "message 9.4 to bob, about mod.fn"
    assert str(Sent(ID, "bob", "")) == "message 9.4 to bob"


@pytest.mark.parametrize(
    ("gradients", "text"),
    [
        ((), "0 gradients for a message with 2"),
        ((np.ones(2), np.ones(3), None), "3 gradients"),
        ((np.ones(3), None), r"tensor 0 is \(3,\) float64, not \(2,\) float64"),
        ((None, np.ones(2)), r"tensor 1 is \(2,\) float64, not \(2,\) float32"),
        (([1.0, 1.0], None), "tensor 0 is <class 'list'>"),
    ],
)
def test_gradients_fit_the_tensors(gradients: Any, text: str) -> None:
    sent = Sent(ID, "bob", "")
    sent.add(Tensor(np.ones(2), requires_grad=True))
    sent.add(Tensor(np.ones(2, np.float32), requires_grad=True))
    sent.check((None, None))
    sent.check((np.ones(2), np.ones(2, np.float32)))
    with pytest.raises(WireError, match=text):
        sent.check(gradients)


def test_a_gradient_that_reaches_where_a_tensor_came_in_is_for_the_runner() -> None:
    message = received()
    tensor = message.take(1, np.arange(2.0))
    assert tensor.requires_grad and not tensor.is_leaf
    message.runner = runner = Noting(get_ident())
    backward((tensor * 2.0).sum())
    ((index, gradient),) = runner.came
    assert index == 1
    np.testing.assert_array_equal(gradient, [2.0, 2.0])
    assert str(message) == "message 9.4 of bob, about mod.fn"
    assert message.nbytes == 16


@pytest.mark.parametrize("runner", [None, Noting(0), Noting(get_ident() + 1)])
def test_a_local_backward_says_what_to_call_instead(runner: Noting | None) -> None:
    message = received()
    loss = message.take(0, np.arange(2.0)).sum()
    message.runner = runner
    with pytest.raises(AutogradError, match=r"goes on in bob: call `await ctx\.backward\(\[loss\]\)`"):
        loss.backward()
    assert runner is None or not runner.came


def test_a_tensor_comes_once_and_can_have_a_gradient() -> None:
    message = received()
    message.take(0, np.ones(2))
    message.take(1, np.ones(2, ml_dtypes.bfloat16))
    for index, data in ((0, np.ones(2)), (2, np.arange(2))):
        with pytest.raises(WireError, match=f"tensor {index} of message 9.4"):
            message.take(index, data)
    assert sorted(message.orders) == [0, 1]
