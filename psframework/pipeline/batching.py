"""Requests for inference wait in line, and go through the pipeline together. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from psframework.errors import ArgumentError
from psframework.pipeline.microbatch import cut_rows, join, rows, signature
from psframework.pipeline.trees import Tree


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """One request that waits, equal to itself alone.

    Attributes:
        rows: of its arrays.
    """

    rows: int
    _inputs: Tree
    _signature: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that go together.

    Attributes:
        tickets: theirs, the oldest first.
        inputs: their inputs, joined.
    """

    tickets: Sequence[Ticket]
    inputs: Tree

    def apart(self) -> list[Batch]:
        """A batch of each request."""
        return [Batch([ticket], ticket._inputs) for ticket in self.tickets]

    def split(self, result: Tree) -> list[tuple[Ticket, Tree]]:
        """Each request with its rows of a result; what has no rows goes to all of them.

        A request that went alone gets the result, whatever rows it has.

        Raises:
            ArgumentError: the result has other rows than the inputs.
        """
        if len(self.tickets) == 1:
            return [(self.tickets[0], result)]
        borders = list(accumulate((ticket.rows for ticket in self.tickets), initial=0))
        found = rows(result, "result")
        if found != borders[-1]:
            raise ArgumentError(
                f"the model gave {found} rows for {borders[-1]}: to be run in batches it must give one each"
            )
        return list(zip(self.tickets, cut_rows(result, borders)))


class Batcher:
    """The line. Requests go in the order in which they came, but for those that can't be joined.

    Args:
        max_rows: of a batch; a request of more rows goes alone.
        max_requests: of a batch.

    Raises:
        ArgumentError: one of them is less than 1.
    """

    def __init__(self, max_rows: int = 256, max_requests: int = 64) -> None:
        for name, value in (("max_rows", max_rows), ("max_requests", max_requests)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ArgumentError(f"{name}={value!r}: a whole number, at least 1")
        self._max_rows, self._max_requests = max_rows, max_requests
        self._line: deque[Ticket] = deque()

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._line)

    def add(self, tree: Tree) -> Ticket:
        """One more request.

        Args:
            tree: its inputs, arrays of as many rows each; at least one row.

        Raises:
            ArgumentError: it has no rows, their numbers differ, or it is no tree.
        """
        ticket = Ticket(rows(tree), tree, signature(tree))
        self._line.append(ticket)
        return ticket

    def discard(self, ticket: Ticket) -> None:
        """Nobody waits for this one any more; nothing happens if it has been taken."""
        if ticket in self._line:
            self._line.remove(ticket)

    def take(self) -> Batch | None:
        """The oldest request with those behind it that can be joined to it; None if nobody waits.

        Joined are trees of the same structure, whose arrays have the same dtypes and rows of the same shape.
        """
        if not self._line:
            return None
        first = self._line[0]
        taken, total = [first], first.rows
        for ticket in list(self._line)[1:]:
            if ticket._signature != first._signature:
                continue
            total += ticket.rows
            if total > self._max_rows or len(taken) == self._max_requests:
                break  # it is next, so that a large request is not overtaken again and again
            taken.append(ticket)
        going = set(taken)
        self._line = deque(ticket for ticket in self._line if ticket not in going)
        return Batch(taken, join([ticket._inputs for ticket in taken]))
