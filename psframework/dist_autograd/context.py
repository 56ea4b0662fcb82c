"""Distributed-autograd contexts, as one process knows them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from psframework.autograd.accumulate import added
from psframework.autograd.engine import Gradient
from psframework.dist_autograd.ids import ContextId, TensorsId
from psframework.dist_autograd.pairs import Received, Sent
from psframework.errors import ContextClosed, WireError

if TYPE_CHECKING:
    from psframework.autograd.traced import Traced

REMEMBERED: Final = 4096  # creators of contexts that have ended, and contexts of each


class Context:
    """What one process keeps of one context.

    Args:
        id: its name.
        creator: name of the member that opened it.

    Attributes:
        sent, received: its messages with tensors, by name.
        peers: names of the members that calls inside it went to.
        callers: incarnations of those that calls inside it came from.
        gradients: what backwards have left at leaves of this process.
        backwards: how many began.
    """

    __slots__ = (
        "__weakref__", "backwards", "callers", "creator", "ended", "gradients", "id", "peers", "received",
        "sent",
    )  # fmt: skip

    def __init__(self, id: ContextId, creator: str) -> None:
        self.id = id
        self.creator = creator
        self.sent: dict[TensorsId, Sent] = {}
        self.received: dict[TensorsId, Received] = {}
        self.peers: dict[str, None] = {}
        self.callers: set[int] = set()
        self.gradients: dict[Traced, Gradient] = {}
        self.backwards = 0
        self.ended: str | None = None

    def __str__(self) -> str:
        return f"distributed-autograd context {self.id} of {self.creator}"

    def check(self) -> None:
        """ContextClosed if it has ended, or failed."""
        if self.ended is not None:
            raise ContextClosed(f"{self} {self.ended}")

    def arriving(self, id: TensorsId, peer: tuple[str, int], about: str) -> Received:
        """The message that a tensor comes with."""
        self.check()
        found = self.received.get(id)
        if found is None:
            found = self.received[id] = Received(id, self, peer, about)
        elif found.peer != peer:
            raise WireError(f"message {id} came from {found.peer[0]}, and now from {peer[0]}")
        return found

    def add(self, gradients: Mapping[Any, Gradient]) -> None:
        """A backward has ended here, with these gradients of leaves."""
        for leaf, gradient in gradients.items():
            total = self.gradients.get(leaf)
            self.gradients[leaf] = gradient if total is None else added(total, gradient)

    def end(self, why: str) -> None:
        """Nothing of it is kept."""
        if self.ended is None:
            self.ended = why
        self.sent.clear()
        self.received.clear()
        self.gradients.clear()

    def sizes(self) -> dict[str, int]:
        """What is kept, for leak tests."""
        return {"sent": len(self.sent), "received": len(self.received), "gradients": len(self.gradients)}


class Contexts:
    """All contexts that one process takes part in.

    Those that have ended are remembered, so that a late message revives none: by creator, all below a number,
    and the latest of those above it. (One that is revived all the same lives until its creator is asked.)

    Args:
        incarnation: of this process.
    """

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._living: dict[ContextId, Context] = {}
        self._ended: OrderedDict[int, _Ended] = OrderedDict()
        self._last = 0

    def __len__(self) -> int:
        return len(self._living)

    def __contains__(self, id: ContextId) -> bool:
        return id in self._living

    def __iter__(self) -> Iterator[Context]:
        return iter(tuple(self._living.values()))

    @property
    def oldest(self) -> int:
        """All contexts opened here with a lower counter have ended."""
        own = [id.counter for id in self._living if id.creator == self._incarnation]
        return min(own, default=self._last + 1)

    def open(self, creator: str) -> Context:
        """A new context of this process."""
        self._last += 1
        context = Context(ContextId(self._incarnation, self._last), creator)
        self._living[context.id] = context
        return context

    def enter(self, id: ContextId, creator: str) -> Context:
        """A call of that context has come. ContextClosed if it has ended."""
        found = self._living.get(id)
        if found is None:
            self._refuse_ended(id)
            if id.creator == self._incarnation:
                raise WireError(f"context {id} was never opened here")
            found = self._living[id] = Context(id, creator)
        found.check()
        return found

    @property
    def remembered(self) -> int:
        """How many contexts that have ended are remembered one by one, for leak tests."""
        return sum(map(len, self._ended.values()))

    def get(self, id: ContextId) -> Context | None:
        """A context that this process takes part in; None if there is none, or none any more."""
        return self._living.get(id)

    def find(self, id: ContextId) -> Context:
        """A context that this process takes part in. ContextClosed if it has ended, or never came here."""
        found = self._living.get(id)
        if found is None:
            self._refuse_ended(id)
            raise ContextClosed(f"distributed-autograd context {id} is not known here")
        found.check()
        return found

    def end(self, id: ContextId, why: str = "has ended") -> Context | None:
        """A context has ended; returns it if something was kept of it."""
        if id.creator != self._incarnation:
            ended = self._ended.setdefault(id.creator, _Ended())
            self._ended.move_to_end(id.creator)
            while len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)
            ended.add(id.counter)
        context = self._living.pop(id, None)
        if context is not None:
            context.end(why)
        return context

    def end_below(self, creator: int, counter: int) -> list[Context]:
        """All contexts of a creator below a number have ended; returns those of which something was kept."""
        late = [id for id in self._living if id.creator == creator and id.counter < counter]
        found = [context for id in late if (context := self.end(id)) is not None]
        if creator in self._ended:
            self._ended[creator].through(counter)
        return found

    def end_of(self, creator: int, why: str) -> list[Context]:
        """The creator is dead."""
        late = [id for id in self._living if id.creator == creator]
        return [context for id in late if (context := self.end(id, why)) is not None]

    def _refuse_ended(self, id: ContextId) -> None:
        if id.creator == self._incarnation:
            has_ended = 0 < id.counter <= self._last
        else:
            has_ended = id.counter in self._ended.get(id.creator, ())
        if has_ended:
            raise ContextClosed(f"distributed-autograd context {id} has ended")


class _Ended:
    """Counters of one creator's contexts that have ended."""

    __slots__ = ("_above", "_below")

    def __init__(self) -> None:
        self._below = 0
        self._above: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._above)

    def __contains__(self, counter: int) -> bool:
        return counter < self._below or counter in self._above

    def add(self, counter: int) -> None:
        if counter >= self._below:
            self._above[counter] = None
            if len(self._above) > REMEMBERED:
                del self._above[next(iter(self._above))]

    def through(self, counter: int) -> None:
        if counter > self._below:
            self._below = counter
            self._above = {above: None for above in self._above if above >= counter}
