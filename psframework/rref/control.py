"""Brings messages about references to other processes, and repeats what was not answered.

All that is said to one process in one turn of the loop goes in one call; deletions, for which nobody waits,
gather for a little longer. While something is owed, all of it is said again now and then: the state machines
at both ends don't mind repetitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from psframework.errors import Evicted, PeerLost
from psframework.proto.v1.rref_pb2 import ExchangeReply, ExchangeRequest, ReferenceMessage
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.errand import Errand, Operation
from psframework.rpc.functions.routes import Routes
from psframework.rpc.status import detail_to_error
from psframework.rpc.values.journey import Journey
from psframework.rref.encoding import from_message, to_messages
from psframework.rref.messages import Delete, Message
from psframework.rref.table import Table

log = logging.getLogger("psframework.rref")

SERVICE: Final = "psframework.proto.v1.RRefService"
FIRST_RETRY, LAST_RETRY = 0.2, 5.0
DELETE_SECONDS = 0.01  # for which deletions gather
EXCHANGE_SECONDS = 10.0
MOST_MESSAGES = 2000


def _itself(reply: ExchangeReply, parts: Sequence[memoryview], journey: Journey) -> ExchangeReply:
    return reply


EXCHANGE: Final = Operation(f"/{SERVICE}/Exchange", ExchangeReply, _itself, lambda request: True)


def heed(
    table: Table, peer: PeerInfo, messages: Iterable[ReferenceMessage]
) -> tuple[list[Message], list[tuple[int, Exception]]]:
    """Does what another process says. A message that makes no sense stops no other.

    Returns:
        The answers that are known at once, and what is wrong, by the index of the message.
    """
    answers: list[Message] = []
    errors: list[tuple[int, Exception]] = []
    for index, message in enumerate(messages):
        try:
            answers += table.receive(peer, from_message(message))
        except Exception as error:
            errors.append((index, error))
    return answers, errors


@dataclass(slots=True)
class _Line:
    """What is said to one process."""

    queue: list[Message] = field(default_factory=list)
    flushing: bool = False
    gathering: asyncio.TimerHandle | None = None
    under_way: int = 0
    delay: float = FIRST_RETRY
    timer: asyncio.TimerHandle | None = None
    failure: str = ""


class Control:
    """The way to all other processes.

    Args:
        routes: finds sessions with them.
        has_ended: whether the membership says that a life is over. A silence, however long, says nothing.
    """

    def __init__(self, routes: Routes, has_ended: Callable[[int], bool]) -> None:
        self._routes = routes
        self._has_ended = has_ended
        self._table: Table | None = None
        self._lines: defaultdict[int, _Line] = defaultdict(_Line)
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def serve(self, table: Table) -> None:
        """Whose messages these are."""
        self._table = table

    @property
    def table(self) -> Table:
        """Whose messages these are."""
        assert self._table is not None
        return self._table

    def post(self, to: int, message: Message) -> None:
        """Says something to the process of an incarnation."""
        if self._closed or to in self.table.account.fenced:
            return
        line = self._lines[to]
        line.queue.append(message)
        if line.flushing:
            return
        if not isinstance(message, Delete):
            line.flushing = True
            self._loop.call_soon(self._flush, to, line)
        elif line.gathering is None:
            line.gathering = self._loop.call_later(DELETE_SECONDS, self._flush, to, line)

    def hurry(self) -> None:
        """Says again at once what is owed."""
        for to in self.table.account.debtors:
            line = self._lines[to]
            if line.queue:
                self._flush(to, line)
            elif not line.under_way:
                line.delay = FIRST_RETRY
                self._repeat(to, line)

    def forget(self, to: int) -> None:
        """The process is dead."""
        line = self._lines.pop(to, None)
        for timer in (line.timer, line.gathering) if line is not None else ():
            if timer is not None:
                timer.cancel()

    def failure(self, to: int) -> str:
        """Why the last attempt to reach a process failed; empty if it did not."""
        line = self._lines.get(to)
        return line.failure if line else ""

    def close(self) -> None:
        """Nothing is said any more."""
        self._closed = True
        for to in list(self._lines):
            self.forget(to)

    def _flush(self, to: int, line: _Line) -> None:
        line.flushing = False
        if line.gathering is not None:
            line.gathering.cancel()
            line.gathering = None
        messages, line.queue = line.queue, []
        for begin in range(0, len(messages), MOST_MESSAGES):
            self._send(to, line, messages[begin : begin + MOST_MESSAGES])

    def _send(self, to: int, line: _Line, messages: list[Message]) -> None:
        name = self.table.names.get(to)
        if self._closed or name is None:
            return
        line.under_way += 1
        request = ExchangeRequest(messages=to_messages(messages))
        errand = Errand(self._routes, EXCHANGE, request, Journey(), Deadline.after(EXCHANGE_SECONDS))
        peer = PeerInfo(name, "", "", to)
        errand.future.add_done_callback(lambda done: self._said(peer, line, done))
        self._routes.send(errand, name, to)

    def _said(self, peer: PeerInfo, line: _Line, done: asyncio.Future[Any]) -> None:
        line.under_way -= 1
        error = PeerLost("cancelled") if done.cancelled() else done.exception()
        if self._closed or self._lines.get(peer.incarnation) is not line:
            return
        if error is None:
            line.failure = self._take(peer, done.result(), line.failure)
        else:
            line.failure = str(error)
            log.debug("%s was not reached: %s", peer.name, error)
            if isinstance(error, Evicted):
                self.table.evicted(error)
            elif self._has_ended(peer.incarnation):  # before this process could hear of it
                self.forget(peer.incarnation)
                self.table.lost(peer.incarnation, "lease")
                return
        if line.timer is None:
            line.timer = self._loop.call_later(line.delay, self._look, peer.incarnation, line)

    def _take(self, peer: PeerInfo, reply: ExchangeReply, before: str) -> str:
        """Does what the answers say; returns why some of what was said is refused, and warns once of it."""
        answers, errors = heed(self.table, peer, reply.messages)
        for answer in answers:
            self.post(peer.incarnation, answer)
        failures = [f"refuses what was said: {detail_to_error(refused.error)}" for refused in reply.errors]
        failures += [f"said what makes no sense: {error}" for _, error in errors]
        failure = "; ".join(failures[:3])
        if failure and failure != before:
            log.warning("%s %s", peer.name, failure)
        return failure

    def _look(self, to: int, line: _Line) -> None:
        """Some time has passed: repeats what is owed, and forgets the process if nothing is."""
        line.timer = None
        if line.under_way or line.queue:
            line.timer = self._loop.call_later(line.delay, self._look, to, line)
        elif not self._repeat(to, line):
            del self._lines[to]

    def _repeat(self, to: int, line: _Line) -> bool:
        owed = self.table.account.pending(to)
        line.delay = min(2 * line.delay, LAST_RETRY)
        for begin in range(0, len(owed), MOST_MESSAGES):
            self._send(to, line, owed[begin : begin + MOST_MESSAGES])
        return bool(owed)
