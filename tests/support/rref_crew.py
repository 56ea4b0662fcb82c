"""Members with references, in this process and in processes of their own."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from crew import SUPPORT, end, until

from psframework.rpc.functions.routes import Address
from psframework.rref.client import RRefs
from psframework.testing.workers import Phonebook, Worker, worker

__all__ = ["Member", "Team", "until"]


@dataclass
class Member:
    """One with references."""

    worker: Worker
    rrefs: RRefs

    @property
    def me(self) -> int:
        return self.worker.agent.identity.incarnation

    @property
    def account(self) -> Any:
        return self.rrefs.table.account

    def rpc(self, to: str, fn: Any, *args: Any, timeout: float = 10.0) -> Any:
        return self.worker.remote.rpc_async(to, fn, args, timeout=timeout)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is remembered: no values, no references, nothing owed or half known."""
        gc.collect()
        account = self.account
        left = (account.owner, account.user, account.outgoing, account.incoming)
        return not any(map(len, left)) and not account.owner.tombstones and not account.owner.waiting


@dataclass
class Team:
    """Members that know each other."""

    stack: AsyncExitStack
    book: Phonebook = field(default_factory=Phonebook)
    members: dict[str, Member] = field(default_factory=dict)
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def hire(self, name: str, **options: Any) -> Member:
        made = await self.stack.enter_async_context(worker(name, self.book, **options))
        rrefs = await self.stack.enter_async_context(RRefs(made.agent, made.remote, self.book, made.service))
        member = self.members[name] = Member(made, rrefs)
        self._tell()
        return member

    async def process(self, name: str) -> asyncio.subprocess.Process:
        """One in a process of its own, with incarnations that nobody here has."""
        process = self.processes[name] = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SUPPORT / "rref_member.py"),
            name,
            str(1000 + len(self.processes)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), str(SUPPORT.parent.parent)])},
        )
        self.stack.push_async_callback(end, process)
        assert process.stdout is not None
        address, incarnation = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().split()
        self.book.known[name] = Address([address], "worker", int(incarnation))
        self._tell()
        return process

    def _tell(self) -> None:
        """Processes learn where the others are."""
        for process in self.processes.values():
            assert process.stdin is not None
            for name, where in self.book.known.items():
                process.stdin.write(f"{name} {where.addresses[0]} {where.incarnation}\n".encode())

    def bury(self, name: str, reason: str = "closed") -> None:
        """What the membership tells everybody when a member has died."""
        incarnation = self.book.known.pop(name).incarnation
        for member in self.members.values():
            member.worker.agent.lost(name, incarnation, reason)
            member.rrefs.lost(SimpleNamespace(incarnation=incarnation), reason)

    async def clean(self, *names: str, seconds: float = 10.0) -> None:
        """Waits until members remember nothing."""
        members = [self.members[name] for name in names] or list(self.members.values())
        await until(lambda: all(member.is_clean for member in members), seconds)


def sees(member: Member) -> Callable[[], int]:
    """How many values a member keeps."""
    return lambda: len(member.rrefs.table)
