"""From a member's name to a session with it, for calls that don't wait: in order, also while it is opened."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from psframework.errors import DeadlineExceeded, PeerLost, PsfError, ResourceExhausted
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.errand import Callee, Errand
from psframework.rpc.session.agent import Agent
from psframework.rpc.session.calls import CALL_BYTES
from psframework.rpc.session.loopback import Loopback

DIAL_SECONDS = 30.0
"""How long a member that is said to live is dialled, also for calls that have no deadline."""


class Address(NamedTuple):
    """Where a live member is.

    Attributes:
        addresses: HOST:PORT, best first; none for a member that can't be dialled.
        role: its role, which its certificate must show.
        incarnation: which life of it that is.
    """

    addresses: Sequence[str]
    role: str
    incarnation: int


class Directory(Protocol):
    """Knows the members."""

    def address_of(self, to: Any, /) -> Address:
        """Where `to` is: a name, a member, or anything with an owner.

        Raises:
            PeerLost: no such member lives.
        """
        ...


class Routes:
    """Sends errands.

    Args:
        agent: this process's sessions.
        directory: knows the members.
    """

    def __init__(self, agent: Agent, directory: Directory) -> None:
        self._agent = agent
        self._directory = directory
        self.loopback = Loopback(agent.identity, agent.methods, agent.options.backlog_bytes)
        self._known: dict[str, Callee] = {}
        self._opening: dict[str, list[Errand]] = {}
        self._kept: dict[str, int] = {}  # bytes that these keep, at most
        self._open: dict[Errand, None] = {}

    @property
    def open(self) -> Sequence[Errand]:
        """Errands without an outcome."""
        return tuple(self._open)

    def info(self, name: str, incarnation: int | None = None) -> PeerInfo | None:
        """Who a message to that member goes to; None if nobody knows it."""
        known = self.find(name, incarnation)
        if known is not None:
            return known.info
        try:
            address = self._directory.address_of(name)
        except PsfError:
            return None
        return PeerInfo(name, address.role, "", address.incarnation)

    def send(self, errand: Errand, name: str, incarnation: int | None = None) -> None:
        """Sends an errand to a member: at once if there is a session, else as soon as there is one."""
        errand.name, errand.incarnation = name, incarnation
        self._open[errand] = None
        callee = self.find(name, incarnation)
        if callee is not None:
            if errand.parts and errand.idempotent:
                errand.keep()
            errand.leave(callee)
            return
        if self._has_room(errand):
            errand.keep()
            self._wait(errand)

    def send_to(self, errand: Errand, callee: Callee) -> None:
        """Sends an errand over one session, and no other."""
        errand.name = callee.info.name
        self._open[errand] = None
        errand.leave(callee)

    async def close(self) -> None:
        """Ends calls to this process itself; those to others end with the agent."""
        await self.loopback.close()

    # As the errands' Routes

    def again(self, errand: Errand, lost: Callee) -> None:
        """Sends it once more, if the same life of the member goes on; else the errand fails."""
        assert errand.error is not None
        try:
            lives = self._directory.address_of(errand.name).incarnation == lost.info.incarnation
        except PsfError:
            lives = False
        if not lives or self._agent.closed or lost is self.loopback:
            errand.fail(errand.error)
            return
        errand.incarnation = lost.info.incarnation
        self._wait(errand)

    def over(self, errand: Errand) -> None:
        """An errand has its outcome."""
        self._open.pop(errand, None)

    def trouble(self, name: str) -> str:
        """Why a member that is being dialled can't be reached, if that is known."""
        return self._agent.trouble(name)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs work that ends with the agent."""
        self._agent.spawn(work)

    # Sessions

    def find(self, name: str, incarnation: int | None = None) -> Callee | None:
        """The session with a member; None if there is none, or if calls wait for it."""
        known = self._known.get(name)
        if known is not None:
            if known.lost is None and incarnation in (None, known.info.incarnation):
                return known
            del self._known[name]
        if name in self._opening:
            return None  # what was asked for before goes first
        found: Callee | None = self._agent.peer_for(name, incarnation)
        local = self.loopback.info
        if name == local.name and incarnation in (None, local.incarnation):
            found = self.loopback
        if found is not None:
            self._known[name] = found
            found.when_lost(partial(self._forget, name, found))
        return found

    def _forget(self, name: str, callee: Callee) -> None:
        if self._known.get(name) is callee:
            del self._known[name]

    def _has_room(self, errand: Errand) -> bool:
        """Whether what waits for a session may take the errand too; else it has failed."""
        limit, size = self._agent.options.backlog_bytes, _size(errand)
        kept = self._kept.get(errand.name, 0)
        if kept + size > limit:  # some of them may have ended
            kept = sum(map(_size, self._opening.get(errand.name, ())))
        if kept and size and kept + size > limit:
            errand.fail(
                ResourceExhausted(
                    f"{kept} bytes of calls wait for a connection to {errand.name}, and {limit} may: await "
                    "some of them before making more",
                    retry_after=0.1,
                )
            )
            return False
        self._kept[errand.name] = kept + size
        return True

    def _wait(self, errand: Errand) -> None:
        errand.wait()
        waiting = self._opening.get(errand.name)
        if waiting is not None:
            waiting.append(errand)
            return
        if self._agent.closed:
            errand.fail(_closed(errand.name))
            return
        self._opening[errand.name] = [errand]
        self._agent.spawn(self._fetch(errand.name))

    async def _fetch(self, name: str) -> None:
        """Opens a session, and sends all that waits for it, in order."""
        try:
            callee = await self._session(name)
        except PsfError as error:
            self._answer(name, None, error)
        except BaseException:
            self._answer(name, None, _closed(name))
            raise
        else:
            self._answer(name, callee, None)

    def _answer(self, name: str, callee: Callee | None, error: PsfError | None) -> None:
        self._kept.pop(name, None)
        for errand in self._opening.pop(name, ()):
            if errand.done():
                continue
            wanted = errand.incarnation
            if callee is not None and wanted in (None, callee.info.incarnation):
                errand.leave(callee)
            else:
                errand.fail(_lost_again(error) if error is not None else _other_life(name, wanted))

    async def _session(self, name: str) -> Callee:
        while True:
            found = self._agent.peer_for(name)
            if found is not None:
                return found
            address = self._directory.address_of(name)
            if not address.addresses:
                raise PeerLost(
                    f"{name} has no address to be dialled at, and has no connection to this process",
                    peer=name,
                    reason="refused",
                    may_have_run=False,
                )
            latest = self._latest(name)
            if latest is None or self._agent.closed:
                raise _closed(name)
            try:
                return await self._agent.connect(
                    address.addresses,
                    name=name,
                    role=address.role,
                    incarnation=address.incarnation,
                    deadline=min(latest, Deadline.after(DIAL_SECONDS)),
                )
            except (PeerLost, DeadlineExceeded):
                later = self._latest(name)
                given_up_early = latest.expired and later is not None and later > latest
                if self._agent.closed or not (given_up_early or self._moved(name, address)):
                    raise

    def _latest(self, name: str) -> Deadline | None:
        """The last deadline of what waits for a session, now: more may come. None if nothing does."""
        return max((e.deadline for e in self._opening[name] if not e.done()), default=None)

    def _moved(self, name: str, address: Address) -> bool:
        """Whether the member has begun another life meanwhile."""
        return self._directory.address_of(name).incarnation != address.incarnation


def _size(errand: Errand) -> int:
    """Bytes that an errand keeps; none once it has its outcome."""
    return CALL_BYTES + sum(map(len, errand.parts)) if errand.parts else 0


def _lost_again(error: PsfError) -> PsfError:
    """Each errand gets an exception of its own, since its traceback grows where it is raised."""
    if type(error) is PeerLost:
        return PeerLost(str(error), peer=error.peer, reason=error.reason, may_have_run=error.may_have_run)
    return error


def _closed(name: str) -> PeerLost:
    text = f"this process ended its connections before {name} was reached"
    return PeerLost(text, peer=name, reason="closed", may_have_run=False)


def _other_life(name: str, incarnation: int | None) -> PeerLost:
    text = f"incarnation {incarnation} of {name} has ended; another one lives"
    return PeerLost(text, peer=name, reason="incarnation", may_have_run=False)
