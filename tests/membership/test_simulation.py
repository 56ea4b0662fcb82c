"""The pure core at thousands of members under a virtual clock: crashes, stops, a coordinator that dies.

Checked at every step:
- nobody who renews in time is ever fenced, also not by a coordinator that slept or was restarted;
- whoever is fenced for its lease has stopped, by its own clock, to believe in it;
- whoever crashes is fenced within its lease + 1 s of the coordinator being awake;
- incarnations are never used twice, names are unique among live members, view numbers only grow.
"""

import heapq
import itertools
import os
import random
from dataclasses import dataclass, field

import pytest

from psframework.errors import Evicted, NameTaken
from psframework.membership.lease import HeldLease, Reason, renewal_interval
from psframework.membership.records import MEMBER_PREFIX, read_member
from psframework.membership.registry import JoinSpec, Registry
from psframework.membership.store import Change, MemoryStore
from psframework.membership.view import Member

TICK = 0.1
STREAM_NOTICE = 0.05  # seconds until a closed connection is seen


@dataclass
class Process:
    """One simulated process."""

    member: Member
    held: HeldLease
    state: str = "live"  # live, crashed (connection closes), stopped (silent), fenced
    since: float = 0.0
    beats: int = 0


@dataclass
class Simulation:
    """An event queue over one Registry, which is loaded again when the coordinator restarts."""

    seed: int
    count: int
    rng: random.Random = field(init=False)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.store = MemoryStore()
        self.store.open()
        self.order = itertools.count()
        self.events: list[tuple[float, int, str, object]] = []
        self.processes: dict[int, Process] = {}
        self.seen_incarnations: set[int] = set()
        self.fenced = dict.fromkeys(Reason, 0)
        self.awake_at = 0.0  # since when the coordinator has been ticking without a gap
        self.up = True
        self.load()

    def load(self) -> None:
        self.registry, self.loaded_at = Registry(self.now), self.now
        items = dict(self.store.items("meta/"))
        self.registry.load(
            [read_member(value) for _, value in self.store.items(MEMBER_PREFIX)],
            incarnation=int(items.get("meta/incarnation", b"0")),
            number=int(items.get("meta/view", b"0")),
            now=self.now,
        )
        self.number = self.registry.log.view.number

    def at(self, delay: float, kind: str, argument: object = None) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.order), kind, argument))

    def commit(self, change: Change) -> None:
        self.store.commit(change.writes)
        change.publish()
        view = self.registry.log.view
        assert view.number > self.number
        self.number = view.number

    def run(self, seconds: float) -> None:
        for _ in range(self.count):
            self.at(self.rng.uniform(0, 2), "join")
        self.at(TICK, "tick")
        self.at(self.rng.uniform(5, 15), "trouble")
        while self.events[0][0] < seconds:
            self.now, _, kind, argument = heapq.heappop(self.events)
            getattr(self, f"do_{kind}")(argument)
            if kind == "tick":
                self.check()

    def do_join(self, _: None) -> None:
        lease = self.rng.choice([3.0, 5.0, 10.0])
        self.do_ask((JoinSpec("worker", lease_s=lease, nonce=self.rng.randbytes(16)), None))

    def do_ask(self, asked: tuple[JoinSpec, float | None]) -> None:
        """Asks to join until it is answered."""
        spec, asked_at = asked
        if asked_at is None or asked_at < self.loaded_at:  # a request dies with its coordinator
            asked_at = self.now
        if not self.up:
            self.at(0.3, "ask", (spec, None))
            return
        try:
            decided = self.registry.join(spec, asked_at, self.now)
        except NameTaken:
            holder = self.registry.log.view.find(spec.name)
            assert holder is not None
            holding = self.processes[holder.incarnation]
            assert holding.state == "live" or asked_at - holding.since < 0.1  # its last renewal was under way
            return
        if decided is None:
            self.at(0.2, "ask", (spec, asked_at))
            return
        member, change = decided
        assert change is not None and member.incarnation not in self.seen_incarnations
        self.seen_incarnations.add(member.incarnation)
        replaced = self.registry.log.view.find(member.name)
        self.commit(change)
        if replaced is not None:
            self.gone(replaced, Reason.REPLACED)
        self.begin(member)

    def begin(self, member: Member) -> None:
        process = Process(member, HeldLease(member.lease_s, self.now))
        self.processes[member.incarnation] = process
        self.registry.leases.stream_opened(member.incarnation, member.incarnation)
        self.at(self.rng.uniform(0, 0.5), "beat", process)
        if self.rng.random() < 0.3:
            self.at(self.rng.uniform(1, 60), self.rng.choice(["crash", "stop", "blip", "leave"]), process)

    def do_beat(self, process: Process) -> None:
        """A renewal is sent; it takes a while to arrive."""
        if process.state != "live":
            return
        process.beats += 1
        delay = self.rng.expovariate(200)
        self.at(delay, "arrive", (process, self.now))
        self.at(renewal_interval(process.member.lease_s) + delay, "beat", process)

    def do_arrive(self, renewal: tuple[Process, float]) -> None:
        process, sent_at = renewal
        if process.state == "fenced":
            return
        if not self.up:  # it is sent again
            if process.state == "live":
                self.at(0.2, "arrive", renewal)
            return
        try:
            seconds = self.registry.renew(process.member.incarnation, process.beats, self.now)
        except Evicted:
            raise AssertionError(f"{process.member} renewed in time and was fenced") from None
        if process.state == "live":
            process.held.answered(sent_at, seconds)

    def do_crash(self, process: Process) -> None:
        if process.state == "live":
            process.state, process.since = "crashed", self.now
            self.at(STREAM_NOTICE, "closed", process)

    def do_stop(self, process: Process) -> None:
        if process.state == "live":
            process.state, process.since = "stopped", self.now

    def do_blip(self, process: Process) -> None:
        """Its stream breaks and is opened again, while it goes on renewing."""
        if process.state == "live" and self.up:
            number = process.member.incarnation
            self.registry.leases.stream_closed(number, number, self.now)
            process.beats += 1
            process.held.answered(self.now, self.registry.renew(number, process.beats, self.now))
            self.at(self.rng.uniform(0.1, 30), "reopen", process)

    def do_reopen(self, process: Process) -> None:
        if process.state == "live":
            self.registry.leases.stream_opened(process.member.incarnation, process.member.incarnation)

    def do_closed(self, process: Process) -> None:
        number = process.member.incarnation
        self.registry.leases.stream_closed(number, number, self.now)
        if self.up and self.rng.random() < 0.5:
            spec = JoinSpec("worker", process.member.name, nonce=self.rng.randbytes(16))
            self.at(self.rng.uniform(0, 3), "ask", (spec, None))

    def do_leave(self, process: Process) -> None:
        if process.state == "live" and self.up:
            change = self.registry.leave(process.member.incarnation, self.now)
            assert change is not None
            self.commit(change)
            process.state = "fenced"

    def do_tick(self, _: None) -> None:
        self.at(TICK, "tick")
        if not self.up:
            return
        before = self.registry.log.view
        change = self.registry.tick(self.now)
        if change is None:
            return
        self.commit(change)
        delta = self.registry.log.since(before.number)
        assert delta is not None
        for departure in delta.departed:
            self.gone(departure.member, departure.reason)

    def gone(self, member: Member, reason: Reason) -> None:
        process = self.processes[member.incarnation]
        assert process.state != "live", f"{member} is alive, but was fenced: {reason}"
        if reason is Reason.LEASE:
            assert process.held.remaining(self.now) == 0.0, "two would hold the lease"
        process.state = "fenced"
        self.fenced[reason] += 1

    def do_trouble(self, _: None) -> None:
        """The coordinator sleeps, or dies and is started again."""
        self.at(self.rng.uniform(10, 30), "trouble")
        self.up = False
        self.at(self.rng.choice([0.5, 4.0, 12.0]), self.rng.choice(["wake", "reload"]))

    def do_wake(self, _: None) -> None:
        self.up, self.awake_at = True, self.now

    def do_reload(self, _: None) -> None:
        self.load()
        self.up, self.awake_at = True, self.now
        for process in self.processes.values():
            if process.state == "live":  # it opens its stream again, and renews
                self.at(self.rng.uniform(0, 0.5), "reopen", process)

    def check(self) -> None:
        names = [member.name for member in self.registry.log.view.members]
        if not self.up:
            return
        assert len(set(names)) == len(names)
        for process in self.processes.values():
            if process.state in ("crashed", "stopped"):
                since = max(process.since, self.awake_at)
                assert self.now - since <= process.member.lease_s + 1.0, f"{process.member} is not fenced"


def simulate(count: int, seconds: float, seed: int) -> Simulation:
    simulation = Simulation(seed, count)
    try:
        simulation.run(seconds)
    except BaseException:
        print(f"repeat with PSF_SEED={seed}; virtual time {simulation.now:.3f} s")
        raise
    return simulation


@pytest.mark.parametrize(("count", "seconds"), [(50, 200.0), (2000, 40.0)])
def test_random_troubles(count: int, seconds: float) -> None:
    seed = int(os.environ.get("PSF_SEED", random.randrange(2**32)))
    simulation = simulate(count, seconds, seed)
    assert sum(simulation.fenced.values()) > 0
    assert len(simulation.registry.log.view.members) > count / 2


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_ten_thousand_members() -> None:
    simulate(10_000, 60.0, random.randrange(2**32))
