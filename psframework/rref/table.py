"""One process's account of references, with those who wait for it: the only place that acts on actions."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from psframework.errors import ArgumentError, ContextClosed, PeerLost, PsfError
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.context import running_deadline
from psframework.rpc.values.journey import Outcome
from psframework.rref.account import Account, Held
from psframework.rref.holds import Hold
from psframework.rref.ids import ForkId, HoldId, RRefId
from psframework.rref.messages import (
    Action,
    Admitted,
    Confirmed,
    Failed,
    Message,
    Ready,
    Rejected,
    Release,
    Seen,
    Send,
)
from psframework.rref.owner import Entry
from psframework.rref.user import Fork
from psframework.rref.waiters import Waiters, fresh

Post = Callable[[int, Message], None]


class Home:
    """A handle of a value of this process itself.

    Attributes:
        rref: the value.
        entry: the value with its account; None while a reference that came in a message waits for its parent.
        error: why there is none.
    """

    __slots__ = ("dropped", "entry", "error", "hold", "rref")

    def __init__(self, rref: RRefId, entry: Entry | None = None, hold: HoldId | None = None) -> None:
        self.rref = rref
        self.entry = entry
        self.hold = hold
        self.error: PsfError | None = None
        self.dropped = False


Ref = Fork | Home


class Table:
    """The references of one process.

    Args:
        identity: who this process is.
        post: sends a message to the process of an incarnation; repeated by whoever sends.

    Attributes:
        account: what is known.
        names: of processes, by incarnation.
        closed: why references can't be used any more; None while they can.
        waiters: for a value here (its RRefId), a fork of it (its ForkId), a reference that comes home (its
            HoldId), a fork of this process (owner, ForkId), or anything (None).
    """

    def __init__(self, identity: PeerInfo, post: Post) -> None:
        self.identity = identity
        self.account = Account(identity.incarnation)
        self.names: dict[int, str] = {identity.incarnation: identity.name}
        self.closed: PsfError | None = None
        self.born: dict[RRefId, float] = {}
        self._post = post
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.waiters = Waiters()
        self._homecomings: dict[HoldId, Home] = {}
        self._garbage: deque[Ref] = deque()
        self._woken = False
        self._answering: tuple[int, list[Message]] | None = None

    def __len__(self) -> int:
        return len(self.account.owner)

    # Values of this process

    def adopt(self) -> Entry:
        """A new value of this process, to be finished, with one handle."""
        entry = self.account.owner.adopt(self.account.new_id())
        self.born[entry.rref] = time.monotonic()
        return entry

    def create(self, rref: RRefId, fork: ForkId, peer: PeerInfo) -> Entry | None:
        """A new value that a user asked for; None if it has given up already, or is dead."""
        self.meet(peer.incarnation, peer.name)
        entry, actions = self.account.owner.create(rref, fork)
        if entry is not None:
            self.born[rref] = time.monotonic()
        self.apply(actions)
        return entry

    def finish(self, entry: Entry, value: Any = None, error: BaseException | None = None) -> None:
        """The value was made, or its making failed."""
        failure = None if error is None else fresh(error)
        self.apply(self.account.owner.finish(entry, value, failure))

    async def value(self, rref: RRefId, fork: ForkId | None, deadline: Deadline) -> Any:
        """Waits for a value of this process.

        Args:
            rref: its name.
            fork: the reference of whoever asks; None if that is this process itself.
            deadline: when to give up.

        Raises:
            DeadlineExceeded: it is still being made, or the fork's creation or registration has not come.
            ContextClosed: the fork refers to something else, or was dropped.
            PeerLost: it is gone.
            PsfError: the error that its making ended with.
        """
        owner = self.account.owner
        while fork is not None and not owner.has_seen(fork):  # it may be overtaken by what uses it
            await self.waiters.wait(fork, deadline, f"fork {fork} of RRef {rref} is not registered")
        while True:
            entry = owner.find(rref)
            if entry is None:
                raise self.gone(rref)
            if fork is not None and fork not in entry.forks:
                raise ContextClosed(f"fork {fork} does not refer to RRef {rref}: dropped, or never did")
            if entry.is_ready:
                if entry.error is not None:
                    raise fresh(entry.error)
                return entry.value
            await self.waiters.wait(rref, deadline, f"the value of RRef {rref} is still being made")

    def local_value(self, home: Home) -> Any:
        """A value that is here. Waits for it in threads, not on the loop."""
        entry = home.entry
        if entry is None or not entry.is_ready:
            if self.is_on_loop:
                text = f"RRef {home.rref} is still being made: `await rref.to_here()` waits for it"
                raise ArgumentError(text)
            waiting = self.value(home.rref, None, running_deadline())
            return asyncio.run_coroutine_threadsafe(waiting, self._loop).result()
        if entry.error is not None:
            raise fresh(entry.error)
        return entry.value

    @property
    def is_on_loop(self) -> bool:
        """Whether this is the loop's thread."""
        return threading.get_ident() == self._thread

    def check_thread(self) -> None:
        """Raises ArgumentError in any thread but the loop's, and on any other loop."""
        if asyncio._get_running_loop() is not self._loop:
            raise ArgumentError(
                "remote references are made and used on the event loop: make this function `async def`"
            )

    def gone(self, rref: RRefId) -> PeerLost:
        """What those get who ask for a value that nobody refers to."""
        name = self.identity.name
        return PeerLost(f"{name} has no value of RRef {rref} (any more)", peer=name, may_have_run=False)

    # References in messages

    def depart(self, ref: Ref, peer: PeerInfo) -> Hold[Held]:
        """A reference leaves in a message."""
        self.meet(peer.incarnation, peer.name)
        what = ref if isinstance(ref, Fork) else ref.entry
        assert what is not None
        return self.account.depart(what, peer.incarnation)

    def replied(self, hold: Hold[Held]) -> None:
        """The message is a reply: nobody will tell how it ended, unless it can't be sent."""
        self.account.outcome(hold, Outcome.ANSWERED)

    def outcome(self, hold: Hold[Held], outcome: Outcome) -> None:
        """How the message ended."""
        self.apply(self.account.outcome(hold, outcome))

    def arrive(
        self, rref: RRefId, owner: tuple[int, str], parent: ForkId | None, hold: HoldId, sender: PeerInfo
    ) -> tuple[Ref, asyncio.Future[None] | None]:
        """A reference has come; returns it, and what must be awaited before it can be used."""
        self.meet(sender.incarnation, sender.name)
        self.meet(*owner)
        home = None
        if owner[0] == self.identity.incarnation:
            home = self._homecomings[hold] = Home(rref, hold=hold)
        try:
            fork, actions = self.account.arrive(rref, *owner, parent, hold)
        except PsfError:
            self._homecomings.pop(hold, None)
            raise
        self.apply(actions)
        if home is not None:
            is_ready = home.entry is not None or home.error is not None
            return home, self.waiters.settled(home.error) if is_ready else self.waiters.add(hold)
        assert fork is not None
        if fork.error is not None:
            return fork, self.waiters.settled(fork.error)
        return fork, None if hold.sender == owner[0] else self.confirmation(fork)

    def decline(self, hold: HoldId) -> None:
        """The message with this reference can't be read."""
        self.apply(self.account.decline(hold))

    def abandon(self, home: Home) -> None:
        """The message with this reference is refused, perhaps before it was admitted."""
        if home.hold is not None and self._homecomings.pop(home.hold, None) is not None:
            home.error = self.gone(home.rref)
            self.waiters.wake(home.hold, home.error)
            self.apply(self.account.owner.abandon(home.hold))

    def confirmation(self, fork: Fork) -> asyncio.Future[None]:
        """Done once the owner has confirmed the fork."""
        if fork.is_pending and fork.error is None:
            return self.waiters.add((fork.owner, fork.id))
        return self.waiters.settled(fork.error)

    def end(self) -> None:
        """Nothing will happen any more: whoever waits hears that."""
        self.waiters.end(self.closed)

    # What happens

    def meet(self, incarnation: int, name: str) -> None:
        """Learns the name of a process, unless that is dead."""
        if incarnation not in self.account.fenced:
            self.names[incarnation] = name

    def receive(self, sender: PeerInfo, message: Message) -> list[Message]:
        """What another process says; returns the answers that are known at once.

        Raises:
            PsfError: it makes no sense, or comes from the dead.
        """
        self.meet(sender.incarnation, sender.name)
        answers: list[Message] = []
        self._answering = (sender.incarnation, answers)
        try:
            self.apply(self.account.receive(sender.incarnation, message))
        finally:
            self._answering = None
        return answers

    def lost(self, incarnation: int, reason: str) -> None:
        """A process is dead."""
        self.apply(self.account.lost(incarnation, reason))
        self.names.pop(incarnation, None)

    def evicted(self, error: PsfError) -> None:
        """This process is dead for all others."""
        self.apply(self.account.evicted(error))

    def apply(self, actions: Iterable[Action]) -> None:
        """Does what the account wants done."""
        for action in actions:
            match action:
                case Send(to, message):
                    self._send(to, message)
                case Confirmed(owner, fork):
                    self.waiters.wake((owner, fork))
                case Failed(owner, fork, error):
                    self.waiters.wake((owner, fork), error)
                case Admitted(hold, rref):
                    self._admitted(hold, rref)
                case Rejected(hold):
                    self._rejected(hold)
                case Ready(rref):
                    self.waiters.wake(rref)
                case Seen(fork):
                    self.waiters.wake(fork)
                case Release(rref):
                    self.born.pop(rref, None)
                    self.waiters.wake(rref)
        self.waiters.wake(None)

    def _send(self, to: int, message: Message) -> None:
        if to == self.identity.incarnation:
            self.apply(self.account.receive(to, message))
        elif self._answering is not None and self._answering[0] == to:
            self._answering[1].append(message)
        else:
            self._post(to, message)

    def _admitted(self, hold: HoldId, rref: RRefId) -> None:
        home = self._homecomings.pop(hold, None)
        if home is None or home.dropped:
            self.apply(self.account.owner.drop(rref))
            return
        home.entry = self.account.owner.find(rref)
        self.waiters.wake(hold)

    def _rejected(self, hold: HoldId) -> None:
        home = self._homecomings.pop(hold, None)
        if home is not None:
            home.error = self.gone(home.rref)
            self.waiters.wake(hold, home.error)

    # Handles that nobody needs any more

    def drop_later(self, ref: Ref) -> None:
        """For finalizers, in any thread, and in the midst of anything: notes it, and wakes the loop."""
        self._garbage.append(ref)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is owed any more
                self._loop.call_soon_threadsafe(self.collect)

    def collect(self) -> None:
        """Drops what finalizers noted."""
        self._woken = False
        garbage = self._garbage
        while garbage:
            self.drop(garbage.popleft())

    def drop(self, ref: Ref) -> None:
        """One handle less. Only the first time counts."""
        if ref.dropped:
            return
        if isinstance(ref, Fork):
            self.apply(self.account.user.drop(ref))
            return
        ref.dropped = True
        if ref.entry is not None:
            entry, ref.entry = ref.entry, None
            self.apply(self.account.owner.drop(entry.rref))
