"""Collectives where ranks share hosts: inside each host, between hosts, inside again.

Every step of an operation is made in any case, if only to compare, so that whatever a step finds wrong
reaches all ranks: a leader tells the other leaders, or its host, by refusing the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.hierarchical_steps import Phase, Plan, Steps
from psframework.collective.hosts import Hosts
from psframework.collective.work import Transport, Work
from psframework.errors import CollectiveMismatch

SMALL: Final = 1 << 16
"""Above so many bytes, what is computed between steps leaves the thread in which the last step ended."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One operation on its way."""

    work: Work
    steps: Steps


class Hierarchical:
    """Implements Transport over two others.

    Args:
        local: between the ranks of this host, numbered in their order in `hosts`; None for the only rank of
            its host. It runs two operations for each of the group, under one sequence number.
        leaders: between the leaders, the lowest ranks of the hosts, numbered in the order of `hosts`; None
            for a rank that does not lead.
        rank: of this process, in the group.
        hosts: the ranks of each host, in rising order.
    """

    name = "hierarchical"
    lives_on = True  # whatever a step finds different, every rank learns of

    def __init__(
        self, local: Transport | None, leaders: Transport | None, rank: int, hosts: Sequence[Sequence[int]]
    ) -> None:
        self._transports = {Phase.UP: local, Phase.ACROSS: leaders, Phase.DOWN: local}
        self._next = {Phase.UP: leaders, Phase.ACROSS: local, Phase.DOWN: None}
        self._plan = Plan(Hosts(hosts), rank)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="psf-hierarchical")

    def start(self, work: Work) -> None:
        """Begins the first step; the end of each begins the next one."""
        self._go_on(_Run(work, self._plan.steps(work)))

    def abort(self, error: BaseException) -> None:
        """The step that runs, in this host or between leaders, ends with `error`."""
        for phase in (Phase.UP, Phase.ACROSS):
            transport = self._transports[phase]
            if transport is not None:
                transport.abort(error)

    async def close(self) -> None:
        """Closes both transports."""
        for phase in (Phase.ACROSS, Phase.UP):
            transport = self._transports[phase]
            if transport is not None:
                await transport.close()
        self._thread.shutdown(wait=False)

    def _go_on(self, run: _Run) -> None:
        try:
            for phase, step in run.steps:
                transport = self._transports[phase]
                if transport is not None:
                    step.done = partial(self._ended, run, phase)
                    transport.start(step)
                    return
        except BaseException as error:  # whoever waits for the operation must learn of it
            run.work.done(run.work, error)
        else:
            run.work.done(run.work, None)

    def _ended(self, run: _Run, phase: Phase, step: Work, error: BaseException | None) -> None:
        if error is not None:
            self._fail(run.work, phase, error)
        elif max((a.nbytes for a in (step.send, step.receive) if a is not None), default=0) <= SMALL:
            self._go_on(run)
        else:
            self._thread.submit(self._go_on, run)

    def _fail(self, work: Work, phase: Phase, error: BaseException) -> None:
        """The operation has failed here; a mismatch is told to those who wait in the next step."""
        waiting = self._next[phase]
        if not isinstance(error, CollectiveMismatch):
            self.abort(error)
        elif waiting is not None:
            refusal = Descriptor(work.descriptor.sequence, Operation.REFUSE, open=True, note=str(error))
            told = Work(refusal, None, None, work.deadline, lambda *_: work.done(work, error))
            waiting.start(told)
            return
        work.done(work, error)
