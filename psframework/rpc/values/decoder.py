"""Reads values from Value messages; how each kind is read, `readers` know. `arguments` is the way in.

Everything here came from a peer: each count is compared with what is left before anything is made, depth and
the number of containers are bounded, names are looked up and nothing is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from psframework.errors import WireError
from psframework.nn.making import Bound
from psframework.proto.v1.remote_pb2 import Value
from psframework.rpc.values import kinds
from psframework.rpc.values.journey import Journey
from psframework.rpc.values.kinds import MAX_CONTAINERS, MAX_DEPTH
from psframework.rpc.values.modules import Modules
from psframework.wire.device_bytes import DeviceBytes, Part
from psframework.wire.memory import Buffer

if TYPE_CHECKING:
    from psframework.rpc.call import PeerInfo
    from psframework.rpc.registry import Entry

_UNIFORM = 8  # items from which on it pays to ask whether all are of one kind
_HAVE_COLUMNS = (kinds.REAL, kinds.INTEGER, kinds.TEXT)
_PAIR = bytes([kinds.TUPLE, 2])
_NO_ITEMS = bytes([kinds.DICT, 0])

Reader = Callable[["Decoder", int], Any]
Authorize = Callable[["Entry", "PeerInfo"], None]
Home = Callable[[Callable[[], Any]], Any]


def _unknown(decoder: Decoder, depth: int) -> Any:
    raise WireError(f"a value of kind {decoder.outline[decoder.at - 1]}, which is none that may stand here")


def here(function: Callable[[], Any]) -> Any:
    """The `Home` of whoever reads on the thread of the passengers."""
    return function()


READERS: Final[list[Reader]] = [_unknown] * 256
"""How a node is read, by its byte; filled by `teach`."""


def teach(readers: Mapping[int, Reader]) -> None:
    """Adds readers of nodes."""
    for kind, reader in readers.items():
        READERS[kind] = reader


class Decoder:
    """Reads one value.

    Args:
        message: what `Encoder` wrote, or anything else.
        parts: the parts of its frame.
        journey: is told to passengers.
        views: large arrays are views of the parts; False copies all.
        home: calls a function on the thread of the passengers.

    Attributes:
        authorize: raises PermissionDenied if the peer may not call a class; None where nobody asks.
    """

    __slots__ = ("_blobs", "_containers", "_integers", "_modules", "_parts", "_reals", "_texts", "_used",
                 "at", "authorize", "home", "journey", "message", "outline", "views")  # fmt: skip

    def __init__(
        self,
        message: Value,
        parts: Sequence[Part],
        journey: Journey,
        views: bool,
        home: Home = here,
    ) -> None:
        self.message = message
        self.journey = journey
        self.views = views
        self.outline = message.outline
        self.at = 0
        self._parts = parts
        self._used = 0
        self._containers = 0
        self._modules: Modules | None = None
        self.authorize: Authorize | None = None
        self.home = home
        # The columns, each made when it is first needed: most messages have one or two.
        self._integers: Iterator[int] | None = None
        self._reals: Iterator[float] | None = None
        self._texts: Iterator[str] | None = None
        self._blobs: Iterator[bytes] | None = None

    def value(self) -> Any:
        """The value; WireError if the message is not just that."""
        value = self.node(0)
        self._check_end()
        return value

    def call(self) -> tuple[Any, Any]:
        """A call's arguments, the two items of a tuple; WireError if the message is not just that."""
        if not self.outline.startswith(_PAIR):
            raise WireError("the arguments of a call are a tuple and a dict with names")
        self.at, self._containers = len(_PAIR), 1
        args = self.node(1)
        if self.outline[self.at :] == _NO_ITEMS and self._modules is None:  # as nearly always
            return args, {}
        pair = args, self.node(1)
        self._check_end()
        return pair

    def node(self, depth: int) -> Any:
        """The next node, with all that is in it."""
        at = self.at
        self.at = at + 1
        try:
            reader = READERS[self.outline[at]]
        except IndexError:
            raise short() from None
        return reader(self, depth)

    def byte(self) -> int:
        """The next byte of the outline."""
        at = self.at
        self.at = at + 1
        try:
            return self.outline[at]
        except IndexError:
            raise short() from None

    def number(self) -> int:
        """The next number of the outline, below 2**63."""
        result = byte = self.byte()
        if byte < 0x80:
            return result
        result &= 0x7F
        for shift in range(7, 63, 7):
            byte = self.byte()
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
        raise WireError("a number that does not end")

    def begin(self, depth: int, each: int = 1) -> int:
        """A container begins: the number of its items, of so many nodes each."""
        self._containers += 1
        if depth >= MAX_DEPTH or self._containers > MAX_CONTAINERS:
            raise _too_much()
        outline, at = self.outline, self.at
        if at < len(outline) and (count := outline[at]) < 0x80:
            self.at = at + 1
        else:
            count = self.number()
        left = len(outline) - self.at
        if count * each > left:
            raise WireError(f"{count} items where {left} bytes of outline are left")
        return count

    def nest(self, depth: int) -> None:
        """A container of a fixed number of nodes begins."""
        self._containers += 1
        if depth >= MAX_DEPTH or self._containers > MAX_CONTAINERS:
            raise _too_much()

    def items(self, count: int, depth: int) -> list[Any]:
        """So many nodes."""
        if count >= _UNIFORM:
            at, outline = self.at, self.outline
            kind = outline[at]
            if kind in _HAVE_COLUMNS and outline.count(kind, at, at + count) == count:
                return self._uniform(kind, count)
        elif count == 1:
            return [self.node(depth)]
        node = self.node
        return [node(depth) for _ in range(count)]

    def _uniform(self, kind: int, count: int) -> list[Any]:
        """So many numbers or texts at once."""
        self.at += count
        column: Iterator[Any]
        if kind == kinds.INTEGER:
            column = self._integers = self._integers or iter(self.message.integers)
        elif kind == kinds.REAL:
            column = self._reals = self._reals or iter(self.message.reals)
        else:
            column = self._texts = self._texts or iter(self.message.texts)
        found = list(islice(column, count))
        if len(found) != count:
            raise short()
        return found

    def integer(self) -> int:
        """The next of the integers."""
        column = self._integers
        if column is None:
            column = self._integers = iter(self.message.integers)
        value = next(column, None)
        if value is None:
            raise short()
        return value

    def real(self) -> float:
        """The next of the reals."""
        column = self._reals
        if column is None:
            column = self._reals = iter(self.message.reals)
        value = next(column, None)
        if value is None:
            raise short()
        return value

    def text(self) -> str:
        """The next of the texts."""
        column = self._texts
        if column is None:
            column = self._texts = iter(self.message.texts)
        value = next(column, None)
        if value is None:
            raise short()
        return value

    def blob(self) -> Buffer:
        """The next of the blobs."""
        column = self._blobs
        if column is None:
            column = self._blobs = iter(self.message.blobs)
        value = next(column, None)
        if value is None:
            raise short()
        return value

    def modules(self) -> Modules:
        """Those that this value has had so far.

        They may take twice what arrived, since a state may be in 16 bits; and each of them has a node, or its
        state has.
        """
        if self._modules is None:
            arrived = self.message.ByteSize() + sum(map(len, self._parts))
            self._modules = Modules(Bound(2 * arrived, len(self.outline)))
        return self._modules

    def _check_end(self) -> None:
        if self.at != len(self.outline):
            raise WireError(f"{len(self.outline) - self.at} bytes of outline are left over")
        if self._modules is not None:
            self._modules.check()

    def part(self) -> memoryview:
        """The next part of the frame, read-only."""
        index = self.message.first_part + self._used
        if index >= len(self._parts):
            raise WireError(f"part {index} of a value, but its frame has {len(self._parts)}")
        self._used += 1
        part = self._parts[index]
        return (part.host() if type(part) is DeviceBytes else memoryview(part)).toreadonly()

    def part_on_device(self) -> DeviceBytes | None:
        """The next part of the frame, if it is on a device."""
        index = self.message.first_part + self._used
        part = self._parts[index] if index < len(self._parts) else None
        if type(part) is not DeviceBytes:
            return None
        self._used += 1
        return part


def short() -> WireError:
    """The error of a message that ends too early."""
    return WireError("the message ends before its value does")


def _too_much() -> WireError:
    return WireError(f"nested deeper than 100 levels, or over {MAX_CONTAINERS} containers")
