"""BSP rounds: all shards close a step with the same contributors, whatever is lost, repeated or reordered."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from psframework.errors import ArgumentError, Evicted, NotRegistered, StaleTerm
from psframework.parameter_server.dedupe import Outcome
from psframework.parameter_server.gate import Round, Verdict
from psframework.parameter_server.policy import BSP
from psframework.parameter_server.registry import Applicant, ModelRecord, ModelSpec
from psframework.parameter_server.roster import Entry, Roster, Seal
from psframework.parameter_server.rounds import Rounds


def roster(*entries: Entry, number: int = 1, **changes) -> Roster:
    return Roster(number=number, entries=entries, ready=True, **changes)


def two(policy: BSP | None = None, *, single: bool = False) -> Rounds:
    rounds = Rounds("job/net", policy or BSP(), single=single)
    assert rounds.publish(roster(Entry(0, 10, 1, "a"), Entry(1, 11, 2, "b")))
    return rounds


def push(rounds: Rounds, writer: int, step: int, *, commit: bool = True) -> None:
    assert rounds.admit(writer, step).verdict is Verdict.STAGE
    rounds.pushed(writer, step)
    if commit:
        rounds.commit(writer, step + 1)


def test_a_step_closes_when_all_have_committed_it():
    rounds = two()
    push(rounds, 11, 0)
    assert rounds.ready(0) is None
    push(rounds, 10, 0, commit=False)
    assert rounds.ready(0) is None
    assert "waits for a" in rounds.waiting()
    rounds.commit(10, 1)
    ready = rounds.ready(0)
    assert ready is not None
    assert (ready.step, ready.slots) == (0, (0, 1))
    assert not rounds.released(10, 1)
    rounds.closed(ready)
    assert rounds.released(10, 1)
    assert rounds.outcome(10, 0) is Outcome.APPLIED


def test_the_only_shard_needs_no_commit():
    rounds = two(single=True)
    push(rounds, 10, 0, commit=False)
    push(rounds, 11, 0, commit=False)
    assert rounds.ready(0) is not None


def test_repetitions_are_answered_and_early_pushes_wait():
    rounds = two()
    push(rounds, 10, 0)
    assert rounds.admit(10, 0).outcome is Outcome.STAGED
    assert rounds.admit(10, 1).verdict is Verdict.WAIT
    push(rounds, 11, 0)
    rounds.closed(rounds.ready(0))
    assert rounds.admit(10, 0).outcome is Outcome.APPLIED
    assert rounds.admit(10, 1).verdict is Verdict.STAGE


def test_strangers_and_readers_cannot_push():
    rounds = two()
    with pytest.raises(NotRegistered):
        rounds.admit(99, 0)
    rounds.publish(roster(Entry(0, 10, 1, "a"), number=2, readers=frozenset({50})))
    with pytest.raises(NotRegistered, match="reader"):
        rounds.admit(50, 0)
    assert rounds.released(50, 1000)


def test_a_fenced_trainers_contribution_counts_only_below_its_end():
    for until, slots in ((1, (0, 1)), (0, (0,))):
        rounds = two()
        push(rounds, 10, 0)
        push(rounds, 11, 0, commit=False)
        assert rounds.fence(11) == 1
        with pytest.raises(Evicted):
            rounds.commit(11, 1)
        assert rounds.ready(0) is None
        assert rounds.publish(roster(Entry(0, 10, 1, "a"), Entry(1, 11, 2, "b", 0, until), number=2))
        assert rounds.ready(0).slots == slots


def test_nothing_closes_while_held_paused_or_not_ready():
    rounds = Rounds("job/net", BSP(), single=True)
    entry = Entry(0, 10, 1, "a")
    rounds.publish(Roster(number=1, entries=(entry,), held=True, ready=True))
    push(rounds, 10, 0)
    assert rounds.ready(0) is None
    assert "waits for more trainers" in rounds.waiting()
    rounds.publish(Roster(number=2, entries=(entry,)))
    assert rounds.ready(0) is None
    rounds.publish(Roster(number=3, entries=(entry,), ready=True))
    assert rounds.pause(until=5.0) == 0
    assert rounds.ready(4.9) is None
    assert rounds.ready(5.0) is not None


def test_a_newcomer_whose_first_step_is_closed_is_not_accepted():
    rounds = two(single=True)
    push(rounds, 10, 0)
    push(rounds, 11, 0)
    rounds.closed(rounds.ready(0))
    entries = rounds.roster.entries
    assert not rounds.publish(roster(*entries, Entry(2, 12, 3, "c", 0), number=2))
    assert rounds.publish(roster(*entries, Entry(2, 12, 3, "c", 1), number=3))
    with pytest.raises(ArgumentError, match="from step 1"):
        rounds.admit(12, 0)
    with pytest.raises(StaleTerm):
        rounds.publish(roster(*entries, number=2))


def test_a_step_that_is_being_applied_takes_no_newcomer_and_loses_nobody():
    rounds = two(single=True)
    push(rounds, 10, 0)
    push(rounds, 11, 0)
    done = rounds.ready(0)  # from here to `closed`, another thread does the arithmetic
    assert rounds.pause(until=5.0) == 1
    entries = rounds.roster.entries
    assert not rounds.publish(roster(*entries, Entry(2, 12, 3, "c", 0), number=2))
    assert rounds.fence(11) == 1
    assert rounds.publish(roster(entries[0], Entry(1, 11, 2, "b", 0, 1), Entry(2, 12, 3, "c", 1), number=3))
    assert rounds.ready(9.0) == done
    rounds.closed(done)
    assert rounds.outcome(10, 0) is Outcome.APPLIED
    assert rounds.next_step == 1


def test_with_spares_only_a_seal_closes_a_step():
    rounds = two(BSP(trainers=2, spares=1), single=True)
    push(rounds, 10, 0)
    push(rounds, 11, 0)
    assert rounds.ready(0) is None
    entries = rounds.roster.entries
    rounds.publish(roster(*entries, number=2, seals=(Seal(0, (1,)),)))
    done = rounds.ready(0)
    assert done.slots == (1,)
    rounds.closed(done)
    assert rounds.outcome(10, 0) is Outcome.DROPPED
    assert rounds.admit(10, 0).outcome is Outcome.DROPPED
    assert rounds.outcome(11, 0) is Outcome.APPLIED


@dataclass
class Trainer:
    """A trainer as the network sees it; a dead one's messages may still arrive."""

    writer: int
    step: int
    acked: set[int] = field(default_factory=set)
    alive: bool = True
    fenced: bool = False
    history: list[int] = field(default_factory=list)


class Cluster(RuleBasedStateMachine):
    """Shards, trainers, and a keeper that does one thing at a time, message by message."""

    @initialize(shards=st.integers(1, 3), trainers=st.integers(1, 3))
    def start(self, shards: int, trainers: int) -> None:
        self.now = 0.0
        self.shards = [Rounds("job/net", BSP(), single=shards == 1) for _ in range(shards)]
        self.applied: list[list[tuple[int, ...]]] = [[] for _ in range(shards)]
        self.applying: dict[int, Round] = {}
        self.held: list[dict[tuple[int, int], bool]] = [{} for _ in range(shards)]  # staged (writer, step)
        self.trainers: list[Trainer] = []
        self.numbers = 100
        self.record = ModelRecord("job", "net", ModelSpec(()), "", False, (), 1).ready()
        for _ in range(trainers):
            self.join_now()

    # -- the keeper

    def admit(self, from_step: int) -> int:
        self.numbers += 1
        self.record = self.record.admit(self.numbers, Applicant(f"t{self.numbers}", 1, ""), from_step, BSP())
        return self.numbers

    def publish_all(self, order: list[int]) -> bool:
        accepted = [
            self.shards[i].publish(self.record.roster) for i in order
        ]  # all are told, whatever one says
        return all(accepted)

    def join_now(self) -> None:
        writer = self.admit(max(shard.pause(self.now + 1) for shard in self.shards))
        assert self.publish_all(list(range(len(self.shards))))
        self.trainers.append(Trainer(writer, self.record.entry(writer).from_step))

    @precondition(lambda self: len(self.trainers) < 6)
    @rule(data=st.data(), slow=st.booleans())
    def join(self, data: st.DataObject, slow: bool) -> None:
        """Pause, choose the first step, publish; `slow`: the pause runs out, and steps close in between."""
        writer = self.admit(max(shard.pause(self.now + 1) for shard in self.shards))
        while True:
            if slow:
                self.now += 2
                for index in data.draw(st.sets(st.integers(0, len(self.shards) - 1))):
                    self.close(index)
                slow = False
            if self.publish_all(data.draw(st.permutations(range(len(self.shards))))):
                break
            self.record = self.record.moved(writer, max(shard.pause(self.now + 1) for shard in self.shards))
        self.trainers.append(Trainer(writer, self.record.entry(writer).from_step))

    @precondition(lambda self: any(not t.alive and not t.fenced for t in self.trainers))
    @rule(data=st.data())
    def fence(self, data: st.DataObject) -> None:
        """Phase 1 on every shard, messages of the dead and rounds in between; then the end is published."""
        dead = next(t for t in self.trainers if not t.alive and not t.fenced)
        complete = []
        for index in data.draw(st.permutations(range(len(self.shards)))):
            complete.append(self.shards[index].fence(dead.writer))
            self.late_message(data)
            self.close(data.draw(st.integers(0, len(self.shards) - 1)))
        self.record = self.record.ended(dead.writer, min(complete))
        dead.fenced = True
        for index in data.draw(st.permutations(range(len(self.shards)))):
            assert self.shards[index].publish(self.record.roster)
            self.close(data.draw(st.integers(0, len(self.shards) - 1)))

    @precondition(lambda self: any(t.alive and not t.acked for t in self.trainers))
    @rule()
    def leave(self) -> None:
        trainer = next(t for t in self.trainers if t.alive and not t.acked)
        trainer.alive, trainer.fenced = False, True
        self.record = self.record.ended(trainer.writer, trainer.step)
        assert self.publish_all(list(range(len(self.shards))))

    # -- trainers and the network

    @rule(data=st.data())
    def push(self, data: st.DataObject) -> None:
        alive = [t for t in self.trainers if t.alive]
        if alive:
            trainer = data.draw(st.sampled_from(alive))
            self.deliver(trainer, trainer.step, data.draw(st.integers(0, len(self.shards) - 1)))

    def deliver(self, trainer: Trainer, step: int, index: int) -> None:
        shard = self.shards[index]
        admission = shard.admit(trainer.writer, step)
        if admission.verdict is Verdict.STAGE:
            shard.pushed(trainer.writer, step)
            self.held[index][trainer.writer, step] = True
        if admission.verdict is not Verdict.WAIT and step == trainer.step:
            trainer.acked.add(index)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        done = [t for t in self.trainers if t.alive and len(t.acked) == len(self.shards)]
        if done:
            trainer = data.draw(st.sampled_from(done))
            self.shards[data.draw(st.integers(0, len(self.shards) - 1))].commit(
                trainer.writer, trainer.step + 1
            )

    @rule(data=st.data())
    def pulled(self, data: st.DataObject) -> None:
        for t in self.trainers:
            complete = t.alive and len(t.acked) == len(self.shards)
            if complete and all(s.released(t.writer, t.step + 1) for s in self.shards):
                t.history.append(t.step)
                t.step, t.acked = t.step + 1, set()

    @rule(data=st.data())
    def late_message(self, data: st.DataObject) -> None:
        """Anything that was ever sent may come again, anywhere, also from the dead."""
        if not self.trainers:
            return
        trainer = data.draw(st.sampled_from(self.trainers))
        entry = self.record.roster.find(trainer.writer)
        step = data.draw(st.integers(entry.from_step if entry else 0, trainer.step))
        with contextlib.suppress(Evicted):
            self.deliver(trainer, step, data.draw(st.integers(0, len(self.shards) - 1)))
        with contextlib.suppress(Evicted):
            self.shards[data.draw(st.integers(0, len(self.shards) - 1))].commit(trainer.writer, trainer.step)

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        alive = [t for t in self.trainers if t.alive]
        if len(alive) > 1:
            data.draw(st.sampled_from(alive)).alive = False

    @rule(data=st.data())
    def close_one(self, data: st.DataObject) -> None:
        self.close(data.draw(st.integers(0, len(self.shards) - 1)))

    @rule(data=st.data())
    def begin_one(self, data: st.DataObject) -> None:
        """A shard begins to apply a step; the rest of the world goes on before it has."""
        index = data.draw(st.integers(0, len(self.shards) - 1))
        ready = self.shards[index].ready(self.now)
        if ready is not None:
            self.applying[index] = ready

    def close(self, index: int) -> None:
        begun = self.applying.pop(index, None)
        ready = begun or self.shards[index].ready(self.now)
        if ready is None:
            return
        assert ready.step == len(self.applied[index])
        for slot in ready.slots:
            writer = next(e.writer for e in self.record.roster.entries if e.slot == slot)
            assert (writer, ready.step) in self.held[index]
        self.shards[index].closed(ready)
        self.applied[index].append(ready.slots)

    @rule()
    def time_passes(self) -> None:
        self.now += 1

    @invariant()
    def shards_agree(self) -> None:
        for steps in zip(*getattr(self, "applied", [])):
            assert len(set(steps)) == 1

    def teardown(self) -> None:
        """Whoever lives is never blocked: fence the dead, deliver all that is due, and steps go on."""
        if not getattr(self, "trainers", None):
            return
        self.now += 10
        for dead in [t for t in self.trainers if not t.alive and not t.fenced]:
            self.record = self.record.ended(dead.writer, min(s.fence(dead.writer) for s in self.shards))
        for shard in self.shards:
            assert shard.publish(self.record.roster)
        alive = [t for t in self.trainers if t.alive]
        goal = max((t.step for t in alive), default=0) + 2
        for _ in range(4 * goal):
            for trainer in alive:
                for index in range(len(self.shards)):
                    self.deliver(trainer, trainer.step, index)
            for trainer in alive:
                if len(trainer.acked) == len(self.shards):
                    for shard in self.shards:
                        shard.commit(trainer.writer, trainer.step + 1)
            for index in range(len(self.shards)):
                self.close(index)
            self.pulled(None)
        assert all(t.step >= goal for t in alive), "a living trainer is blocked"
        self.shards_agree()


TestCluster = Cluster.TestCase
TestCluster.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
