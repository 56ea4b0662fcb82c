"""Call order, sequence numbers, what fails with what, and threads."""

import asyncio
import threading

import numpy as np
import pytest
from crew import until

from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.queue import Call, Queue, again, numbered
from psframework.collective.recorder import Recorder
from psframework.collective.work import Work
from psframework.errors import CollectiveMismatch, DeadlineExceeded, PeerLost
from psframework.rpc.deadline import Deadline, boottime


class ByHand:
    """A transport whose works end when a test says so."""

    name = "by hand"

    def __init__(self, *, at_once: bool = False, lives_on: bool = True) -> None:
        self.at_once, self.lives_on = at_once, lives_on
        self.started: list[Work] = []
        self.aborted: list[BaseException] = []

    @property
    def sequences(self) -> list[int]:
        return [work.descriptor.sequence for work in self.started]

    def start(self, work: Work) -> None:
        self.started.append(work)
        if self.at_once:
            work.done(work, None)

    def end(self, error: BaseException | None = None) -> None:
        work = self.started[-1]
        work.done(work, error)

    def abort(self, error: BaseException) -> None:
        self.aborted.append(error)
        if self.started:
            self.end(error)

    async def close(self) -> None: ...


class Bench:
    """A queue, its transport, and what came of the calls."""

    def __init__(self, *, explain=None, **options) -> None:
        self.transport = ByHand(**options)
        self.failed: list[BaseException] = []
        self.recorder = Recorder(boottime)
        loop = asyncio.get_running_loop()
        self.known: list[bool] = []
        self.queue = Queue(self.transport, self.recorder, loop, self._fail, explain)
        self.ends: list[tuple[str, BaseException | None]] = []

    def _fail(self, error: BaseException, known: bool) -> None:
        self.failed.append(error)
        self.known.append(known)

    def call(self, name: str, operation: Operation = Operation.BARRIER, **options) -> Call:
        work = Work(Descriptor(0, operation, note=name), None, None, Deadline.NEVER, self.queue.ended)
        return Call(work, lambda work, error: self.ends.append((name, error)), **options)

    def put(self, *names: str, **options) -> None:
        for name in names:
            self.queue.put(self.call(name, **options))

    @property
    def ended(self) -> list[str]:
        return [name for name, _ in self.ends]


async def test_one_after_the_other_with_numbers_from_one():
    bench = Bench()
    bench.put("a", "b", "c")
    assert bench.transport.sequences == [1]
    bench.transport.end()
    assert bench.ended == ["a"] and bench.transport.sequences == [1, 2]
    bench.transport.end()
    bench.transport.end()
    assert bench.ended == ["a", "b", "c"] and bench.recorder.last_completed == 3
    bench.put("d")
    assert bench.transport.sequences == [1, 2, 3, 4]


async def test_thousands_that_end_at_once_need_no_stack():
    bench = Bench(at_once=True)
    first = bench.call("first")

    def finish(work, error):
        for number in range(20_000):
            bench.queue.put(bench.call(str(number)))

    first.finish = finish
    bench.queue.put(first)
    assert bench.ended == [str(number) for number in range(20_000)]
    assert bench.recorder.last_completed == 20_001


async def test_what_is_put_in_front_runs_next():
    bench = Bench()
    first = bench.call("first")
    first.finish = lambda work, error: bench.queue.put(bench.call("second half"), front=True)
    bench.queue.put(first)
    bench.put("other")
    for _ in range(3):
        bench.transport.end()
    assert bench.ended == ["second half", "other"]


async def test_a_mismatch_fails_those_behind_it_which_take_no_numbers():
    bench = Bench()
    bench.put("a", "b", "c")
    bench.transport.end(CollectiveMismatch("differs"))
    assert bench.ended == ["a", "b", "c"] and {type(error) for _, error in bench.ends} == {CollectiveMismatch}
    assert bench.queue.error is None and not bench.failed
    bench.put("d")
    assert bench.transport.sequences == [1, 2]
    bench.transport.end()
    assert bench.ends[-1] == ("d", None)


async def test_a_refusal_of_this_rank_fails_nothing_behind_it():
    bench = Bench()
    bench.put("refusal", operation=Operation.REFUSE)
    bench.put("b")
    bench.transport.end(CollectiveMismatch("refused"))
    assert bench.ended == ["refusal"] and bench.transport.sequences == [1, 2]


async def test_where_ranks_find_mismatches_differently_the_group_ends():
    bench = Bench(lives_on=False)
    bench.put("a", "b")
    error = CollectiveMismatch("differs")
    bench.transport.end(error)
    assert bench.failed == [error] and bench.queue.error is error
    bench.put("c")
    assert bench.transport.sequences == [1]
    assert [str(error) for _, error in bench.ends] == ["differs"] * 3


async def test_any_other_error_ends_the_group():
    bench = Bench()
    bench.put("a", "b")
    bench.transport.end(PeerLost("rank 1 is gone", peer="x", rank=1))
    bench.put("c")
    assert [(name, str(error), error.rank) for name, error in bench.ends] == [
        (name, "rank 1 is gone", 1) for name in "abc"
    ]
    assert len(bench.failed) == 1 and bench.known == [False] and bench.transport.sequences == [1]
    assert bench.ends[2][1] is not bench.ends[0][1], "each raises an error of its own"


async def test_abort():
    bench = Bench()
    bench.put("a", "b")
    error = PeerLost("gone")
    assert bench.queue.abort(error) and not bench.queue.abort(PeerLost("again"))
    bench.put("c")
    assert [str(each) for _, each in bench.ends] == ["gone"] * 3 and sorted(bench.ended) == ["a", "b", "c"]
    assert bench.transport.aborted == [error] and not bench.failed, "whoever aborts knows"


async def test_a_member_that_left_in_order_fails_only_what_it_took_no_part_in():
    bench = Bench()
    bench.put("a", "b")
    error = PeerLost("closed")
    assert not bench.queue.abort(error, after=1)
    assert bench.ends == []
    bench.transport.end()
    assert [name for name, error in bench.ends if error is None] == ["a"]
    assert str(dict(bench.ends)["b"]) == "closed" and bench.failed == [error]
    assert bench.known == [True], "whoever left told the others"
    assert bench.transport.sequences == [1]


async def test_a_member_that_left_before_ends_what_runs():
    bench = Bench()
    bench.put("a")
    bench.transport.end()
    bench.put("b")
    assert bench.queue.abort(PeerLost("closed"), after=1)
    assert str(dict(bench.ends)["b"]) == "closed"


async def test_an_error_of_loading_ends_the_group_before_the_transport_hears_of_it():
    bench = Bench()

    def load(work: Work) -> None:
        raise MemoryError("no room")

    bench.put("a", load=load)
    assert isinstance(bench.ends[0][1], MemoryError) and bench.failed and not bench.transport.started


async def test_heavy_copies_are_kept_off_the_loop():
    bench = Bench()
    threads = []
    call = bench.call("heavy", load=lambda work: threads.append(threading.current_thread()), heavy=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def finish(work, error):
        threads.append(threading.current_thread())
        loop.call_soon_threadsafe(ended.set)

    call.finish = finish
    bench.queue.put(call)
    bench.put("next")
    await until(lambda: bench.transport.started)
    bench.transport.end()
    await asyncio.wait_for(ended.wait(), 5)
    assert threading.main_thread() not in threads and len(threads) == 2
    await until(lambda: bench.transport.sequences == [1, 2])


async def test_many_threads_put_and_each_operation_runs_once():
    bench = Bench()
    bench.transport.at_once = True
    counts = np.zeros(4, int)

    def work(thread: int) -> None:
        for _ in range(500):
            call = bench.call("x")

            def finish(work, error, thread=thread):
                counts[thread] += 1

            call.finish = finish
            bench.queue.put(call)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert counts.tolist() == [500] * 4
    assert bench.transport.sequences == list(range(1, 2001))


async def test_a_callback_that_raises_stops_nothing(caplog):
    bench = Bench()
    bad = bench.call("bad")
    bad.finish = lambda work, error: 1 / 0
    bench.queue.put(bad)
    bench.put("good")
    bench.transport.end()
    bench.transport.end()
    assert bench.ended == ["good"] and "ZeroDivisionError" in caplog.text


async def test_done_twice_counts_once():
    bench = Bench()
    bench.put("a", "b")
    first = bench.transport.started[0]
    bench.transport.end()
    first.done(first, PeerLost("late news"))
    assert bench.ends == [("a", None)]


async def test_a_deadline_is_explained_before_anybody_hears_of_it():
    asked = []
    bench = Bench(explain=lambda late, then: asked.append((late, then)))
    bench.put("a", "b")
    bench.transport.end(DeadlineExceeded("too late"))
    ((late, then),) = asked
    assert str(late) == "too late" and bench.ends == []
    then(DeadlineExceeded("rank 1 is missing"))
    assert [str(error) for _, error in bench.ends] == ["rank 1 is missing"] * 2
    assert [str(error) for error in bench.failed] == ["rank 1 is missing"]


async def test_a_deadline_also_counts_while_it_waits_for_its_turn():
    bench = Bench()
    bench.put("long")
    call = bench.call("short")
    call.work.deadline = Deadline.after(0.05)
    bench.queue.put(call)
    await until(lambda: bench.failed)
    assert isinstance(bench.failed[0], DeadlineExceeded) and "its turn" in str(bench.failed[0])
    assert sorted(bench.ended) == ["long", "short"]


async def test_a_deadline_counts_behind_a_longer_one_too():
    bench = Bench()
    for name, seconds in (("first", 0.01), ("long", None), ("short", 0.05)):
        call = bench.call(name)
        call.work.deadline = Deadline.after(seconds)
        bench.queue.put(call)
    bench.transport.end()
    await until(lambda: bench.failed)
    assert "its turn behind long" in str(bench.failed[0])
    assert sorted(bench.ended) == ["first", "long", "short"]


async def test_closing_ends_all_and_tells_the_others_something_else():
    bench = Bench()
    bench.put("a", "b")
    mine, theirs = RuntimeError("closed"), PeerLost("rank 0 closed it")
    bench.queue.close(mine, theirs)
    assert sorted((name, str(error)) for name, error in bench.ends) == [("a", "closed"), ("b", "closed")]
    assert bench.transport.aborted == [theirs] and not bench.failed


async def test_closing_an_idle_one_aborts_nothing():
    bench = Bench()
    bench.queue.close(RuntimeError("closed"), PeerLost("closed"))
    assert not bench.transport.aborted
    bench.put("a")
    assert str(bench.ends[0][1]) == "closed"


def test_again_keeps_what_an_error_says():
    error = PeerLost("gone", peer="x", reason="lease", rank=3)
    try:
        raise error
    except PeerLost:
        fresh = again(error)
    assert type(fresh) is PeerLost and str(fresh) == "gone" and fresh.__traceback__ is None
    assert (fresh.peer, fresh.reason, fresh.rank) == ("x", "lease", 3)

    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__("odd")

    odd = Odd(1, 2)
    assert again(odd) is odd


@pytest.mark.parametrize("operation", list(Operation))
def test_numbering_changes_nothing_else(operation):
    before = Descriptor(0, operation, "float32", (3, 4), None, 2, True, "why")
    after = numbered(before, 7)
    assert after.sequence == 7 and numbered(after, 0) == before
