"""Runs of a pipe: all ranks are told to begin and are fed, and what comes of it is collected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from psframework.errors import ContextClosed, DeadlineExceeded
from psframework.pipeline.clocks import Clocks, kernel
from psframework.pipeline.outcome import lanes
from psframework.pipeline.plan import Key, Order, Report
from psframework.pipeline.post import Letter, Post
from psframework.pipeline.ranks import ASK_SECONDS, Ranks, Seat
from psframework.pipeline.trees import Tree, nbytes
from psframework.rpc.deadline import Deadline

TOGETHER: Final = 1 << 16
"""Bytes: inputs of several micro-batches travel together up to this, since a message costs more than they."""


class Runs:
    """The runs of one pipe, one after another or beside each other.

    Args:
        ranks: of the pipe.
        post: to them.

    Attributes:
        number: of the newest one.
        clocks: of the services.
        closed: whether there will be no more.
    """

    def __init__(self, ranks: Ranks, post: Post) -> None:
        self._ranks, self._post = ranks, post
        self.number = 0
        self.clocks = Clocks(kernel())
        self.closed = False

    def next(self) -> int:
        """The number of the next run."""
        self.number += 1
        return self.number

    def check_open(self) -> None:
        """Raises ContextClosed after the end."""
        if self.closed:
            raise ContextClosed("this pipeline is closed")

    async def go(
        self, order: Order, inputs: Sequence[Tree], targets: Sequence[Tree] | None, deadline: Deadline
    ) -> list[Report]:
        """Has all ranks run, and feeds them; returns their reports, in the order of the seats.

        Args:
            order: what they do.
            inputs: of each micro-batch.
            targets: likewise; None: no loss is wanted.
            deadline: for all of it.

        Raises:
            DeadlineExceeded: it took too long; names the stage that it waited for.
            PeerLost: a service is gone.
        """
        self.check_open()
        calls = self._ranks.start("run", order, deadline=_later(deadline))
        received: dict[Any, float] = {}
        for call in calls:
            call.add_done_callback(lambda ended: received.setdefault(ended, time.perf_counter()))
        await self._ended(calls, deadline, self._letters(order, inputs, targets))
        reports: list[Report] = [call.result() for call in calls]
        for service, call, report in zip(lanes(self._ranks.plan), calls, reports):
            self.clocks.note(service, report.kernel, report.clock, received[call])
        return reports

    async def call(
        self, method: str, *args: Any, deadline: Deadline, seats: Sequence[Seat] | None = None
    ) -> list[Any]:
        """Has all ranks, or some, do something else; returns and raises as `go`."""
        calls = self._ranks.start(method, *args, deadline=_later(deadline), seats=seats)
        try:
            if calls:
                await self._ended(calls, deadline)
        except Exception:
            self.check_open()
            raise
        return [call.result() for call in calls]

    async def blame(self) -> str:
        """What to say of a deadline that passed: who did not come to an end, and where it is."""
        standings = await self._ranks.look(Deadline.after(ASK_SECONDS))
        words = self._ranks.words
        silent = [f"{words(seat)} does not answer" for seat, it in standings.items() if it is None]
        busy = [(seat, it) for seat, it in standings.items() if it is not None and it.doing]
        computing = [(seat, it) for seat, it in busy if it.doing.startswith("computing")] or busy
        texts = silent + [
            f"{words(seat)} has been {it.doing} for {it.seconds:.1f} s" for seat, it in computing
        ]
        lost = [f"{words(seat)} is gone" for seat in sorted(self._ranks.lost)]
        said = "; ".join(lost + texts) or "by now nobody is at it any more"
        return f"the step did not end in time: {said}"

    async def _ended(
        self,
        calls: Sequence[asyncio.Future[Any]],
        deadline: Deadline,
        letters: Sequence[tuple[str, list[Letter]]] = (),
    ) -> None:
        """All have ended, and letters have arrived; the first error cancels the others."""
        waits = list(calls)
        try:
            for service, some in letters:
                sent = self._post.send_all(service, some)
                if sent is not None:
                    waits.append(asyncio.ensure_future(sent))
                await asyncio.sleep(0)  # each leaves before the next is copied: stages begin with the first
            wait = asyncio.wait(waits, timeout=deadline.seconds(), return_when=asyncio.FIRST_EXCEPTION)
            _, pending = await wait
            for each in waits:
                if each.done():
                    each.result()  # raises what it has
            if pending:
                raise DeadlineExceeded(await self.blame())  # while they are still at it
        finally:
            for each in waits:
                each.cancel()

    def _letters(
        self, order: Order, inputs: Sequence[Tree], targets: Sequence[Tree] | None
    ) -> list[tuple[str, list[Letter]]]:
        """What is fed to whom, in the order in which it is needed; small ones together."""
        plan = self._ranks.plan
        parcels: list[tuple[str, list[Letter]]] = []
        open_ones: dict[str, tuple[int, list[Letter]]] = {}
        for number, tree in enumerate(inputs):
            fed = [(0, "F", tree)]
            if targets is not None:
                fed.append((plan.stages - 1, "T", targets[number]))
            for stage, kind, each in fed:
                service = plan.service_of(stage, number)
                room, letters = open_ones.get(service, (-1, []))
                size = nbytes(each)
                if size > room:
                    room, letters = TOGETHER, []
                    parcels.append((service, letters))
                letters.append((Key(order.run, kind, stage, number), each))
                open_ones[service] = room - size, letters
        return parcels


def _later(deadline: Deadline) -> Deadline:
    """Time in which ranks can still be asked where they are."""
    left = deadline.seconds()
    return Deadline.NEVER if left is None else Deadline.after(left + 3 * ASK_SECONDS)
