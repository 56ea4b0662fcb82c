"""The two ends of a message with tensors: a `send` node where it left, `recv` nodes where it arrived."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from psframework import backend
from psframework.autograd.node import Node, Parts
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.dist_autograd.ids import TensorsId
from psframework.errors import AutogradError, WireError

if TYPE_CHECKING:
    from psframework.dist_autograd.context import Context


class Runner(Protocol):
    """Runs this process's part of one backward."""

    @property
    def thread(self) -> int:
        """The thread that it runs in at the moment; 0 while it does not."""

    def arrived(self, message: Received, index: int, gradient: Array) -> None:
        """The gradient of one tensor is complete."""


class Sent:
    """A message with tensors that left this process. Gradients that come for it go on below its node.

    Args:
        id: its name.
        peer: name of the member that it went to.
        about: the function that it is about, for people.

    Attributes:
        receiver: incarnation of that member; 0 while nobody knows it.
    """

    __slots__ = ("about", "id", "nbytes", "node", "peer", "receiver", "specs")

    def __init__(self, id: TensorsId, peer: str, about: str) -> None:
        self.id = id
        self.peer = peer
        self.about = about
        self.receiver = 0
        self.nbytes = 0
        self.specs: list[tuple[tuple[int, ...], Any]] = []  # (shape, dtype) of each tensor
        self.node = Node("send", _hand_down, (), ())
        edges: Any = []  # it grows while the message is written
        self.node.edges = edges

    def add(self, tensor: Tensor) -> int:
        """One more tensor; returns its index in the message."""
        edges: Any = self.node.edges
        edges.append(tensor._node or tensor)
        self.specs.append((tensor._data.shape, tensor._data.dtype))
        self.nbytes += tensor._data.nbytes
        return len(self.specs) - 1

    def check(self, gradients: tuple[Array | None, ...]) -> None:
        """WireError unless there is a gradient of the right shape and dtype, or None, for each tensor."""
        if len(gradients) != len(self.specs):
            raise WireError(f"{len(gradients)} gradients for a message with {len(self.specs)} tensors")
        for index, (gradient, spec) in enumerate(zip(gradients, self.specs)):
            if gradient is None:
                continue
            if not backend.is_array(gradient) or (gradient.shape, gradient.dtype) != spec:
                kind = f"{gradient.shape} {gradient.dtype}" if backend.is_array(gradient) else type(gradient)
                raise WireError(f"the gradient of tensor {index} is {kind}, not {spec[0]} {spec[1]}")

    def __str__(self) -> str:
        return f"message {self.id} to {self.peer}" + (f", about {self.about}" if self.about else "")


class Received:
    """A message with tensors that came. What reaches its `recv` nodes goes back to its sender.

    Args:
        id: its name.
        context: that it belongs to.
        peer: (name, incarnation) of the member that sent it.
        about: the function that it is about, for people.
    """

    __slots__ = ("about", "context", "dtypes", "id", "nbytes", "orders", "peer", "runner", "spent")

    def __init__(self, id: TensorsId, context: Context, peer: tuple[str, int], about: str) -> None:
        self.id = id
        self.context = context
        self.peer = peer
        self.about = about
        self.nbytes = 0
        self.orders: dict[int, int] = {}  # of the recv nodes, by index
        self.dtypes: dict[int, Any] = {}
        self.runner: Runner | None = None
        self.spent = False  # a backward that did not retain the graph has gone over it

    def take(self, index: int, data: Array) -> Tensor:
        """A tensor of it has arrived. WireError if it did before, or can't require grad."""
        if index in self.orders or not backend.is_floating(data.dtype):
            raise WireError(f"tensor {index} of message {self.id} came twice, or is of dtype {data.dtype}")
        node = RecvNode(self, index)
        self.orders[index] = node.order
        self.dtypes[index] = data.dtype
        self.nbytes += data.nbytes
        tensor = Tensor(data)
        tensor._node, tensor._requires_grad = node, True
        return tensor

    def __str__(self) -> str:
        return f"message {self.id} of {self.peer[0]}" + (f", about {self.about}" if self.about else "")


class RecvNode(Node):
    """Where a tensor entered this process. It holds its message, which does not hold it: no cycle."""

    __slots__ = ("index", "message")

    def __init__(self, message: Received, index: int) -> None:
        super().__init__("recv", _Back(message, index), (), ())
        self.message = message
        self.index = index


class _Back:
    """The rule of a `recv` node: the gradient leaves the process."""

    __slots__ = ("_index", "_message")

    def __init__(self, message: Received, index: int) -> None:
        self._message = message
        self._index = index

    def __call__(self, gradient: Array) -> tuple[()]:
        runner = self._message.runner
        if runner is None or runner.thread != get_ident():
            raise AutogradError(
                f"this graph goes on in {self._message.peer[0]}: call `await ctx.backward([loss])`, not "
                "`loss.backward()`, or detach() what came from there"
            )
        runner.arrived(self._message, self._index, gradient)
        return ()


def _hand_down(parts: Any) -> Any:
    """The rule of a `send` node."""
    gradients: Parts = parts
    return gradients.gradients
