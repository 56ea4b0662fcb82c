"""The flight recorder: what it keeps, its report, and which rank is behind."""

import pytest

from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.ops import ReduceOp
from psframework.collective.queue import numbered
from psframework.collective.recorder import KEPT, Recorder, Standing, compare
from psframework.errors import CollectiveMismatch, PeerLost

REDUCE = Descriptor(0, Operation.ALL_REDUCE, "float32", (3, 4), ReduceOp.SUM)
BARRIER = Descriptor(0, Operation.BARRIER)
NAMES = {0: "a", 1: "b", 2: "c"}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run(recorder: Recorder, descriptor: Descriptor, number: int, error: Exception | None = None) -> None:
    record = recorder.called(descriptor)
    recorder.started(record, numbered(descriptor, number))
    recorder.ended(record, error)


def test_states_and_times_of_a_report(clock):
    recorder = Recorder(clock)
    first, second, third = (recorder.called(each) for each in (REDUCE, BARRIER, REDUCE))
    clock.now += 1
    recorder.started(first, numbered(REDUCE, 1))
    clock.now += 2
    recorder.ended(first, None)
    recorder.started(second, numbered(BARRIER, 2))
    clock.now += 4
    assert [each.state for each in (first, second, third)] == ["done", "running", "queued"]
    title, _, *lines = recorder.report("the title").splitlines()
    assert title == "the title"
    columns = [" ".join(line.split()) for line in lines]
    assert columns[0] == "1 done 7.000 s 1.000 s 2.000 s all_reduce(float32 of shape (3, 4), SUM)"
    assert columns[1] == "2 running 7.000 s 3.000 s 4.000 s barrier()"
    assert columns[2].startswith("- queued 7.000 s 7.000 s 0 us all_reduce")
    recorder.ended(second, PeerLost("b is gone"))
    assert "failed" in recorder.report("").splitlines()[3]
    assert recorder.report("").splitlines()[3].endswith("barrier(): b is gone")


def test_only_the_last_operations_are_kept(clock):
    recorder = Recorder(clock)
    for number in range(1, KEPT + 11):
        run(recorder, BARRIER, number)
    lines = recorder.report("").splitlines()[2:]
    assert len(lines) == KEPT == 2000
    assert lines[0].split()[0] == "11" and lines[-1].split()[0] == str(KEPT + 10)
    assert [line.split()[0] for line in recorder.report("", last=2).splitlines()[2:]] == ["2009", "2010"]
    assert recorder.report("", last=0).splitlines()[2:] == []


def test_a_failed_operation_is_not_completed(clock):
    recorder = Recorder(clock)
    run(recorder, REDUCE, 1)
    run(recorder, BARRIER, 2, PeerLost("gone"))
    clock.now += 5
    standing = recorder.standing()
    assert standing == Standing(1, "all_reduce(float32 of shape (3, 4), SUM)", 0, "", 5.0)
    assert recorder.last_completed == 1


def test_a_mismatch_has_ended_for_all_ranks_alike(clock):
    recorder = Recorder(clock)
    run(recorder, REDUCE, 1)
    run(recorder, BARRIER, 2, CollectiveMismatch("they differ"))
    assert (recorder.last_completed, recorder.last_shared) == (1, 2)
    dropped = recorder.called(BARRIER)
    recorder.ended(dropped, CollectiveMismatch("they differ"))
    run(recorder, BARRIER, 3, PeerLost("gone"))
    assert (recorder.last_completed, recorder.last_shared) == (1, 2)


def test_a_group_that_continues_another(clock):
    recorder = Recorder(clock)
    recorder.resume(41)
    assert recorder.standing().completed == 41
    assert str(recorder.standing()) == "in no operation, for 0.0 s; its last is 41, of an earlier generation"


def test_who_is_behind_and_where():
    ahead = Standing(11, "barrier()", 12, "all_reduce()", 30.0)
    behind = Standing(10, "broadcast()", 11, "barrier()", 31.0)
    idle = Standing(11, "barrier()", 0, "", 32.0)
    told = compare(NAMES, {0: ahead, 1: idle, 2: ahead})
    assert told == "missing: rank 1 (b), in no operation, for 32.0 s; its last is 11, barrier()"
    told = compare(NAMES, {0: ahead, 1: ahead, 2: behind})
    assert told == "missing: rank 2 (c), in 11, barrier(), for 31.0 s; its last is 10, broadcast()"
    told = compare(NAMES, {0: ahead, 1: idle})
    assert "rank 1 (b), in no operation" in told and told.endswith("rank 2 (c), which does not answer")


def test_nobody_is_behind():
    here = Standing(11, "barrier()", 12, "all_reduce()", 30.0)
    told = compare(NAMES, dict.fromkeys(NAMES, here))
    assert told.startswith("all ranks are in operation 12: rank 0 (a): in 12, all_reduce(), for 30.0 s")


def test_a_rank_that_did_nothing_yet():
    started = Standing(0, "", 1, "barrier()", 3.0)
    told = compare({0: "a", 1: "b"}, {0: started, 1: Standing(seconds=3.0)})
    assert told == "missing: rank 1 (b), in no operation, for 3.0 s; it completed none"


def test_a_comparison_of_many_stays_short():
    names = {rank: f"trainer-{rank}" for rank in range(1000)}
    assert len(compare(names, {0: Standing(5, "barrier()", 6, "barrier()", 1.0)})) < 600
