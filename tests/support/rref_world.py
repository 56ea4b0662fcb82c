"""Processes that pass references around over a network that delays, reorders, repeats and loses messages.

Every process runs a real `Account`. The world delivers what the accounts say, one thing at a time, in the
order that the schedule asks for, and after each step compares what owners remember with what is really held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from psframework.errors import Evicted, PeerLost, WireError
from psframework.rpc.values.journey import Outcome
from psframework.rref.account import Account
from psframework.rref.holds import Hold
from psframework.rref.ids import ForkId, RRefId
from psframework.rref.messages import (
    Action,
    Admitted,
    Confirmed,
    Delete,
    Failed,
    Message,
    Ready,
    Refused,
    Rejected,
    Release,
    Send,
)
from psframework.rref.owner import Entry
from psframework.rref.user import Fork, ForkState

Handle = Fork | Entry


class Violation(AssertionError):
    """What the protocol promises does not hold."""


@dataclass(eq=False)
class Reference:
    """One reference inside a call: what travels, and what became of it at the receiver."""

    rref: RRefId
    owner: int
    parent: ForkId | None
    hold: Hold[Fork | RRefId]
    fork: Fork | None = None
    ok: bool | None = None  # whether it can be used

    @property
    def fork_name(self) -> tuple[int, ForkId] | None:
        return (self.owner, self.fork.id) if self.fork else None


@dataclass(eq=False)
class Call:
    """One message with references."""

    number: int
    sender: int
    receiver: int
    references: list[Reference]
    is_reply: bool = False
    given_up: bool = False  # the sender was told that nobody knows
    arrived: bool = False  # whole: the receiver has looked at every reference

    def __str__(self) -> str:
        carried = ", ".join(f"{r.rref} by hold {r.hold.id}" for r in self.references)
        return f"call {self.number} {self.sender}->{self.receiver} with {carried}"


@dataclass(eq=False)
class Creation:
    """A request for a new value, and later its answer."""

    fork: Fork
    answered: bool = False
    fails: bool = False

    def __str__(self) -> str:
        return f"{'answer to ' if self.answered else ''}creation of {self.fork.rref}"


@dataclass(eq=False)
class Process:
    """One life of one process."""

    account: Account
    handles: list[Handle] = field(default_factory=list)
    waiting: list[Call] = field(default_factory=list)  # arrived; their functions have not started
    asleep: bool = False
    missed: list[Callable[[], None]] = field(default_factory=list)  # what happened to it while it slept

    @property
    def me(self) -> int:
        return self.account.incarnation


class World:
    """All processes and all that is between them. `trace` tells what happened, for people."""

    def __init__(self, processes: int, account: Callable[[int], Account] = Account) -> None:
        self._account = account
        self._next = 0
        self._calls = 0
        self.trace: list[str] = []
        self.alive: dict[int, Process] = {}
        self.dead: set[int] = set()  # crashed, or evicted by the coordinator
        self.packets: list[tuple[int, int, Message | None]] = []  # None: the receiver was declared dead
        self.creations: list[Creation] = []
        self.calls: list[Call] = []  # in flight
        self.released: set[RRefId] = set()
        self.harmed = False  # somebody died: references may be refused
        for _ in range(processes):
            self._start()

    def _start(self) -> None:
        self._next += 1
        self.alive[self._next] = Process(self._account(self._next))

    @property
    def awake(self) -> list[Process]:
        """Those who do something."""
        return [process for process in self.alive.values() if not process.asleep]

    def _sleeps(self, incarnation: int) -> bool:
        return incarnation in self.alive and self.alive[incarnation].asleep

    def say(self, text: str) -> None:
        self.trace.append(text)

    # What processes do

    def make(self, process: Process) -> None:
        """A process refers to a value of its own."""
        entry = process.account.owner.adopt(process.account.new_id())
        self.say(f"{process.me} makes {entry.rref}")
        process.handles.append(entry)
        self.do(process, process.account.owner.finish(entry, object()))

    def create(self, process: Process, owner: int, fails: bool) -> None:
        """A process asks another for a value."""
        rref = process.account.new_id()
        fork = process.account.user.create(rref, owner, f"p{owner}")
        self.say(f"{process.me} asks {owner} for {rref}, its fork {fork.id}")
        process.handles.append(fork)
        self.creations.append(Creation(fork, fails=fails))

    def send(self, process: Process, receiver: int, handles: list[Handle], reply: bool = False) -> None:
        """A process calls another with references in the arguments, or replies with them."""
        usable = [handle for handle in handles if handle.error is None]
        if not usable or receiver in process.account.fenced:
            return
        self._calls += 1
        call = Call(self._calls, process.me, receiver, [])
        for handle in usable:
            hold = process.account.depart(handle, receiver)
            fork = handle if isinstance(handle, Fork) else None
            owner = fork.owner if fork else process.me
            call.references.append(Reference(handle.rref, owner, fork.id if fork else None, hold))
        self.say(f"{'reply by ' if reply else ''}{call}")
        self.calls.append(call)
        if reply:  # nobody will tell how it ended
            self._tell(process, call, Outcome.ANSWERED)
            call.is_reply = True

    def drop(self, process: Process, handle: Handle) -> None:
        """A process needs a reference no more."""
        process.handles.remove(handle)
        name = handle.id if isinstance(handle, Fork) else "its handle"
        self.say(f"{process.me} drops {name} of {handle.rref}")
        self.do(process, self._dropped(process, handle))

    def retry(self, process: Process, to: int) -> None:
        """A process says again what was not answered."""
        for message in process.account.pending(to):
            self.post(process.me, to, message)

    def crash(self, process: Process) -> None:
        """A process dies, and another starts in its place."""
        self.say(f"{process.me} dies; {self._next + 1} starts")
        self.harmed = True
        del self.alive[process.me]
        self.dead.add(process.me)
        self._start()

    def evict(self, process: Process) -> None:
        """The coordinator takes a living process for dead."""
        self.say(f"{process.me} is declared dead, but lives")
        self.harmed = True
        self.dead.add(process.me)

    def sleep(self, process: Process) -> None:
        """A process stands still: it neither does nor hears anything."""
        self.say(f"{process.me} falls asleep")
        process.asleep = True

    def wake(self, process: Process) -> None:
        """It goes on, and does not know how long it slept."""
        self.say(f"{process.me} wakes")
        process.asleep = False
        missed, process.missed = process.missed, []
        for happen in missed:
            happen()

    def notice(self, process: Process, dead: int) -> None:
        """A process hears of a death; perhaps its own."""
        if dead == process.me:
            self.say(f"{process.me} hears that it was evicted")
            if dead not in self.dead:
                raise Violation(f"{dead} is told that it was evicted, but it was not")
            self.do(process, process.account.evicted(Evicted("evicted")))
            self._check_evicted(process)
            self.crash(process)
        elif dead not in process.account.fenced:
            self.say(f"{process.me} hears that {dead} is dead")
            self.do(process, process.account.lost(dead))
            for call in [c for c in process.waiting if c.sender == dead]:  # its session is closed
                self._refuse(process, call)

    # What the network does

    def post(self, sender: int, to: int, message: Message | None) -> None:
        self.packets.append((sender, to, message))

    def deliver(self, index: int, again: bool = False) -> None:
        """A control message arrives; perhaps it will once more."""
        if self._sleeps(self.packets[index][1]):
            return
        sender, to, message = self.packets[index] if again else self.packets.pop(index)
        process = self.alive.get(to)
        if process is None:
            return
        if message is None:
            self.say(f"{sender} refuses what {to} said")
            self.notice(process, to)
            return
        self.say(f"{to} gets {message} from {sender}{', and will again' if again else ''}")
        try:
            self.do(process, process.account.receive(sender, message))
        except Evicted:
            self.post(to, sender, None)

    def lose(self, index: int) -> None:
        """A control message is lost."""
        sender, to, message = self.packets.pop(index)
        self.say(f"lost: {message} from {sender} to {to}")

    def progress(self, index: int, lost: bool = False, late: bool = True) -> None:
        """A creation gets to the owner, or its answer back; or its creator gives up: it is late, or lost."""
        fork = self.creations[index].fork
        if self._sleeps(fork.id.holder) or self._sleeps(fork.owner):
            return
        creation = self.creations.pop(index)
        creator, owner = self.alive.get(fork.id.holder), self.alive.get(fork.owner)
        self.say(f"{creation} {'is lost or late' if lost else 'arrives'}")
        if lost or (creation.answered and creation.fails):
            if creator is not None:
                self.do(creator, creator.account.user.broken(fork, PeerLost("gave up")))
            if lost and late and not creation.answered:
                self.creations.append(Creation(fork, fails=creation.fails))
        elif creation.answered:
            if creator is not None:
                self.do(creator, creator.account.user.created(fork))
        elif owner is not None:
            entry, actions = owner.account.owner.create(fork.rref, fork.id)
            self.do(owner, actions)
            if entry is not None:
                error = PeerLost("it failed") if creation.fails else None
                self.do(owner, owner.account.owner.finish(entry, object(), error))
            if entry is not None or creator is not None:
                failed = creation.fails or entry is None
                self.creations.append(Creation(fork, answered=True, fails=failed))

    def arrive(self, index: int) -> None:
        """A call reaches its receiver, which takes over what it carries."""
        if self._sleeps(self.calls[index].receiver):
            return
        call = self.calls.pop(index)
        process = self.alive.get(call.receiver)
        if process is None:
            return
        self.say(f"arrives: {call}")
        process.waiting.append(call)
        for reference in call.references:
            try:
                self._arrive(process, call, reference)
            except (WireError, Evicted) as error:
                if not call.given_up and call.sender not in process.account.fenced:
                    raise Violation(f"{call} is refused though its sender waits: {error}") from error
                reference.ok = False
        call.arrived = True
        self._look(process, call)

    def _arrive(self, process: Process, call: Call, reference: Reference) -> None:
        hold = reference.hold.id
        arguments = (reference.rref, reference.owner, f"p{reference.owner}", reference.parent, hold)
        fork, actions = process.account.arrive(*arguments)
        reference.fork = fork
        if fork is not None and call.sender == reference.owner and fork.error is None:
            reference.ok = True  # its owner holds it until the fork is registered
        self.do(process, actions)

    def give_up(self, index: int, surely: bool) -> None:
        """A call in flight ends for its sender: it never left, or nobody knows (and it may still come)."""
        call = self.calls[index]
        sender = self.alive.get(call.sender)
        call.given_up = True
        self.say(f"given up, {'never sent' if surely else 'may still arrive'}: {call}")
        if surely:
            self.calls.pop(index)
        outcome = Outcome.REFUSED if surely else Outcome.UNKNOWN
        self._tell(sender, call, outcome)

    def vanish(self, index: int) -> None:
        """A call in flight is lost, and its sender learns only that nobody knows."""
        call = self.calls.pop(index)
        self.say(f"lost: {call}")
        call.given_up = True
        self._tell(self.alive.get(call.sender), call, Outcome.UNKNOWN)

    def cut(self, one: Process, other: Process) -> None:
        """The session between two processes ends, and all that is in flight on it."""
        self.say(f"cut: {one.me} and {other.me}")
        for call in list(self.calls):
            if {call.sender, call.receiver} == {one.me, other.me}:
                self.vanish(self.calls.index(call))
        for process, peer in ((one, other), (other, one)):
            self.do(process, process.account.cut(peer.me))

    def abandon(self, process: Process, call: Call) -> None:
        """A call's deadline passes while its references are being registered."""
        self.say(f"deadline of {call}")
        self._refuse(process, call)

    def _tell(self, sender: Process | None, call: Call, outcome: Outcome) -> None:
        if sender is None or call.is_reply:
            return
        if sender.asleep:
            sender.missed.append(lambda: self._tell(sender, call, outcome))
            return
        for reference in call.references:
            self.do(sender, sender.account.outcome(reference.hold, outcome))

    # What accounts want

    def do(self, process: Process, actions: list[Action]) -> None:
        """Does what an account wants done."""
        for action in actions:
            match action:
                case Send(to, message):
                    self._on_send(process, to, message)
                case Confirmed(owner, fork) | Failed(owner, fork):
                    name, found = (owner, fork), isinstance(action, Confirmed)
                    self._settle(process, found, lambda r, n=name: r.fork_name == n)  # type: ignore[misc]
                case Admitted(hold) | Rejected(hold):
                    found = isinstance(action, Admitted)
                    self._settle(process, found, lambda r, h=hold: r.hold.id == h)  # type: ignore[misc]
                case Release(rref):
                    if rref in self.released:
                        raise Violation(f"{rref} is freed twice")
                    self.released.add(rref)
                case Ready(rref):
                    if rref in self.released:
                        raise Violation(f"{rref} is ready after it was freed")

    def _on_send(self, process: Process, to: int, message: Message) -> None:
        if isinstance(message, Refused) and not self.harmed:
            known = self.alive[to].account.user.find(process.me, message.fork) if to in self.alive else None
            if known is not None and known.state is ForkState.REGISTERING and not known.dropped:
                raise Violation(f"fork {message.fork} is refused, and nobody has died")
        if isinstance(message, Delete):
            self._check_children(process, message.fork, to)
        if to == process.me:
            self.do(process, process.account.receive(process.me, message))
        else:
            self.post(process.me, to, message)

    def _check_children(self, process: Process, parent: ForkId, owner: int) -> None:
        """G2: a fork is deleted only when all that came from it is registered, or never will be."""
        fenced = process.account.fenced
        for call in self.calls + [c for p in self.alive.values() for c in p.waiting]:
            receiver = self.alive.get(call.receiver)
            if call.sender != process.me or call.receiver in fenced or receiver is None:
                continue
            if call.sender in receiver.account.fenced:
                continue  # it will be refused
            for reference in call.references:
                if (reference.parent, reference.owner) != (parent, owner) or reference.ok is not None:
                    continue
                if self._is_taken(receiver, reference):
                    continue
                if (
                    call.given_up
                    and reference.fork is None
                    and reference.hold.id in receiver.account.incoming
                ):
                    continue  # asked, and it will be refused
                raise Violation(f"{process.me} deletes {parent}, but {call} is still open")

    def _is_taken(self, receiver: Process, reference: Reference) -> bool:
        """Whether the owner knows what the receiver has got."""
        if reference.owner == receiver.me:
            entry = receiver.account.owner.find(reference.rref)
            return entry is not None and entry.handles > sum(h is entry for h in receiver.handles)
        owner = self.alive.get(reference.owner)
        return reference.fork is not None and (
            owner is None or owner.account.owner.has_seen(reference.fork.id)
        )

    def _settle(self, process: Process, ok: bool, belongs: Callable[[Reference], bool]) -> None:
        for call in list(process.waiting):
            for reference in call.references:
                if reference.ok is None and belongs(reference):
                    reference.ok = ok
            self._look(process, call)

    def _look(self, process: Process, call: Call) -> None:
        if call not in process.waiting or not call.arrived:
            return
        results = [reference.ok for reference in call.references]
        if False in results:
            self._refuse(process, call)
        elif None not in results:
            process.waiting.remove(call)
            self.say(f"starts: {call}")
            self._tell(self.alive.get(call.sender), call, Outcome.ANSWERED)
            process.handles += [self._handle(process, reference) for reference in call.references]

    def _handle(self, process: Process, reference: Reference) -> Handle:
        if reference.fork is not None:
            return reference.fork
        entry = process.account.owner.find(reference.rref)
        if entry is None:
            raise Violation(f"{reference.rref} was admitted, but is gone")
        return entry

    def _refuse(self, process: Process, call: Call) -> None:
        """The function will not start: all that it would have got is dropped."""
        process.waiting.remove(call)
        for reference in call.references:
            if reference.fork is not None:
                self.do(process, process.account.user.drop(reference.fork))
            elif reference.ok:
                self.do(process, process.account.owner.drop(reference.rref))
            elif reference.ok is None and reference.owner == process.me:
                self.do(process, process.account.owner.abandon(reference.hold.id))
        call.given_up = True
        self._tell(self.alive.get(call.sender), call, Outcome.REFUSED)

    def _dropped(self, process: Process, handle: Handle) -> list[Action]:
        if isinstance(handle, Fork):
            return process.account.user.drop(handle)
        return process.account.owner.drop(handle.rref)

    # What must hold

    def check(self) -> None:
        """No value is gone that somebody refers to; nothing that is freed comes back."""
        for process in self.alive.values():
            self._check_fence(process)
            for handle in process.handles:
                self._check_handle(process, handle)
            for entry in process.account.owner.entries:
                if entry.rref in self.released:
                    raise Violation(f"{entry.rref} was freed, and is back")
        for call in self.calls:
            self._check_flight(call)

    def _check_fence(self, process: Process) -> None:
        """Nothing is kept for those who are known to be dead."""
        account = process.account
        kept = [fork.holder for entry in account.owner.entries for fork in entry.forks]
        kept += [receiver for entry in account.owner.entries for receiver, _ in entry.holds]
        kept += [*account.user.owners, *account.outgoing.receivers, *account.incoming.senders]
        for incarnation in kept:
            if incarnation in account.fenced:
                raise Violation(f"{process.me} keeps something for {incarnation}, which is dead")

    def _check_evicted(self, process: Process) -> None:
        """Who was declared dead refers to nothing, owns for itself, and owes nobody an answer."""
        account = process.account
        forks = [handle for handle in process.handles if isinstance(handle, Fork)]
        if len(account.user) or any(fork.error is None for fork in forks):
            raise Violation(f"{process.me} was evicted, but still refers to {account.user.forks}")
        if account.debtors or any(entry.forks or entry.holds for entry in account.owner.entries):
            raise Violation(f"{process.me} was evicted, but keeps what is others'")

    def _check_handle(self, process: Process, handle: Handle) -> None:
        if isinstance(handle, Entry):
            if process.account.owner.find(handle.rref) is not handle:
                raise Violation(f"{process.me} has a handle of {handle.rref}, but the value is gone")
        elif handle.error is None and handle.state is not ForkState.CREATING:
            owner = self.alive.get(handle.owner)
            if owner is None or {process.me, handle.owner} & self.dead:
                return
            if owner.account.owner.find(handle.rref) is None:
                raise Violation(f"{process.me} holds {handle.id} of {handle.rref}, but the value is gone")
            if handle.state is ForkState.DELETING:
                raise Violation(f"{process.me} has deleted {handle.id}, but a handle is left")

    def _check_flight(self, call: Call) -> None:
        sender, receiver = self.alive.get(call.sender), self.alive.get(call.receiver)
        if sender is None or receiver is None or call.given_up:
            return
        if {call.sender, call.receiver} & self.dead:
            return
        for reference in call.references:
            if reference.owner in self.dead:
                continue
            owner = self.alive.get(reference.owner)
            value = owner and owner.account.owner.find(reference.rref)
            pending = isinstance(reference.hold.what, Fork) and reference.hold.what.is_pending
            if owner is not None and value is None and not pending:
                raise Violation(f"{call} is in flight, but {reference.rref} is gone")

    def settle(self) -> None:
        """All faults end: everything arrives, every death is heard of, every question is asked again.

        The evicted hear it from those whom they owe or ask something, and only then from the membership.
        """
        for process in list(self.alive.values()):
            if process.asleep:
                self.wake(process)
        self._come_to_rest()
        for process in list(self.alive.values()):
            if process.me in self.dead:
                if process.account.debtors:
                    raise Violation(f"{process.me} was evicted, and nobody has told it")
                self.notice(process, process.me)
        self._come_to_rest()
        self.check()
        self._check_books()

    def _come_to_rest(self) -> None:
        for _ in range(100):
            for dead in sorted(self.dead):
                for process in list(self.alive.values()):
                    if dead != process.me and dead not in process.account.fenced:
                        self.notice(process, dead)
            while self.packets:
                self.deliver(0)
            while self.creations:
                self.progress(0)
            while self.calls:
                self.arrive(0)
            for process in list(self.alive.values()):
                for debtor in process.account.debtors:
                    self.retry(process, debtor)
            if not (self.packets or self.creations or self.calls):
                break
        else:
            raise Violation("it never comes to rest")

    def _check_books(self) -> None:
        """At rest owners know exactly the forks that there are, and nothing else is remembered."""
        for process in self.alive.values():
            account = process.account
            if process.waiting:
                raise Violation(f"{process.me} still waits for {process.waiting[0]}")
            left = {
                "forks pending": sum(fork.is_pending for fork in account.user.forks),
                "holds": len(account.outgoing),
                "holds of others": len(account.incoming),
                "tombstones": account.owner.tombstones + account.incoming.tombstones,
                "references waiting": account.owner.waiting,
            }
            if any(left.values()):
                raise Violation(f"{process.me} at rest has {left}")
            for entry in account.owner.entries:
                known = set(entry.forks)
                real = {
                    handle.id
                    for other in self.alive.values()
                    for handle in other.handles
                    if isinstance(handle, Fork) and handle.rref == entry.rref and handle.owner == process.me
                }
                if not known <= real:
                    raise Violation(
                        f"{process.me} keeps forks of {entry.rref} that nobody has: {known - real}"
                    )

    def drop_all(self) -> None:
        """Nobody needs anything any more; owners' tables must become empty."""
        for process in list(self.alive.values()):
            for handle in list(process.handles):
                self.drop(process, handle)
        self.settle()
        for process in self.alive.values():
            # functions may have started while it came to rest
            for handle in list(process.handles):
                self.drop(process, handle)
        self.settle()
        for process in self.alive.values():
            if len(process.account.owner) or len(process.account.user):
                raise Violation(
                    f"{process.me} leaks: {process.account.owner.entries} {process.account.user.forks}"
                )
