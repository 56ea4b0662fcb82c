"""A table at work: pushes wait for their turn, pulls for their release, and nothing waits for ever."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from psframework import optim
from psframework.errors import DeadlineExceeded, Evicted, PeerLost, StaleTerm, UnknownTable
from psframework.parameter_server.clocks import gate_for
from psframework.parameter_server.dedupe import WINDOW, Outcome
from psframework.parameter_server.host import SMALL_BYTES, Host, Push, Waiting
from psframework.parameter_server.layout import Layout, ParameterSpec
from psframework.parameter_server.partition import Balanced
from psframework.parameter_server.policy import ASP, BSP, SSP, Policy
from psframework.parameter_server.roster import Entry, Roster, Seal
from psframework.parameter_server.sources import Arena, Parts
from psframework.parameter_server.table import Gradient, Pull, Table
from psframework.rpc.deadline import Deadline

A, B = Entry(0, 10, 1, "a"), Entry(1, 11, 2, "b")
SOON = 5.0


def host(policy: Policy, size: int) -> Host:
    layout = Layout.of([ParameterSpec("w", "float32", (size,))])
    table = Table(Balanced().cut(layout, 1), optim.SGD(lr=1.0).rule)
    gate = gate_for(policy, "job/net", single=True)
    gate.publish(Roster(1, (A, B), frozenset({50}), ready=True))
    return Host("job/net", table, gate)


@pytest.fixture(params=[16, SMALL_BYTES], ids=["small", "large"])
def size(request) -> int:
    return request.param


def push(table_host: Host, writer: int, step: int, value: float = 1.0, **changes) -> Push:
    table = table_host.table

    async def receive() -> Gradient:
        values = np.full(table.parameter_bytes // 4, value, np.float32)
        source = Arena.packed(table.partitions, values.view(np.uint8).data)
        return Gradient(writer, step + 1, source, table.everything)

    return Push(writer, step + 1, step, receive, **changes)


def waiting(table_host: Host, writer: int, step: int, number: int = 1) -> tuple[Waiting, np.ndarray]:
    memory = np.zeros(table_host.table.parameter_bytes, np.uint8)
    sink = Arena.packed(table_host.table.partitions, memory.data)
    return Waiting(writer, number, step, Pull(sink=sink)), memory.view(np.float32)


async def turns(count: int = 20) -> None:
    """Lets the loop turn: whatever can happen without new input happens."""
    for _ in range(count):
        await asyncio.sleep(0)


def after(seconds: float = SOON) -> Deadline:
    return Deadline.after(seconds)


async def test_a_bsp_step_ends_for_all_when_the_last_comes(size):
    h = host(BSP(), size)
    (first, seen_a), (second, seen_b) = waiting(h, 10, 1), waiting(h, 11, 1)
    early = asyncio.ensure_future(h.push_pull(push(h, 10, 0, 1.0), first, after()))
    await turns()
    assert not early.done()
    assert await h.push_pull(push(h, 11, 0, 3.0), second, after()) is Outcome.APPLIED
    assert await early is Outcome.APPLIED
    assert np.all(seen_a == -2)
    assert np.all(seen_b == -2)
    await h.close()


async def test_a_push_of_a_later_step_waits_its_turn(size):
    h = host(BSP(), size)
    assert await h.push(push(h, 10, 0), after()) is Outcome.STAGED
    ahead = asyncio.ensure_future(h.push(push(h, 10, 1), after()))
    await turns()
    assert not ahead.done()
    await h.push(push(h, 11, 0), after())
    assert await ahead is Outcome.STAGED
    assert await h.push(push(h, 10, 0), after()) is Outcome.APPLIED
    await h.close()


async def test_a_pull_in_vain_names_who_is_missing(size):
    h = host(BSP(), size)
    await h.push(push(h, 10, 0), after())
    with pytest.raises(DeadlineExceeded, match="step 0 of 'job/net' waits for b"):
        await h.pull(waiting(h, 10, 1)[0], after(0.05))
    await h.close()


async def test_readers_never_wait_and_get_what_changed(size):
    h = host(BSP(), size)
    pull, seen = waiting(h, 50, 0)
    seen[...] = 9
    await h.pull(pull, after())
    assert not seen.any()
    again = Waiting(50, 2, 0, Pull(known=pull.pull.versions, sink=pull.pull.sink))
    await h.pull(again, after())
    assert again.pull.changed == []


async def test_asp_applies_each_push_once_and_answers_at_once(size):
    h = host(ASP(), size)
    pull, seen = waiting(h, 10, 1)
    assert await h.push_pull(push(h, 10, 0), pull, after()) is Outcome.APPLIED
    assert np.all(seen == -1)
    await asyncio.gather(*(h.push(push(h, 10, 0), after()) for _ in range(3)))
    pull, seen = waiting(h, 11, 0)
    await h.pull(pull, after())
    assert np.all(seen == -1)


async def test_ssp_holds_back_who_is_too_far_ahead(size):
    h = host(SSP(1), size)
    await h.push(push(h, 10, 0), after())
    await h.pull(waiting(h, 10, 1)[0], after())
    pull, seen = waiting(h, 10, 2, number=2)
    ahead = asyncio.ensure_future(h.push_pull(push(h, 10, 1), pull, after()))
    await turns()
    assert not ahead.done()
    await h.push(push(h, 11, 0), after())
    assert await ahead is Outcome.APPLIED
    assert np.all(seen == -3)


async def test_a_pull_that_was_given_up_writes_nothing_any_more(size):
    h = host(BSP(), size)
    old, old_seen = waiting(h, 10, 1, number=1)
    zombie = asyncio.ensure_future(h.pull(old, after()))
    await asyncio.sleep(0)
    new, new_seen = waiting(h, 10, 1, number=2)
    current = asyncio.ensure_future(h.pull(new, after()))
    await asyncio.sleep(0)
    await h.push(push(h, 10, 0), after())
    await h.push(push(h, 11, 0), after())
    await current
    assert np.all(new_seen == -1)
    with pytest.raises(StaleTerm):
        await zombie
    assert not old_seen.any()
    with pytest.raises(StaleTerm):
        await h.pull(old, after())
    await h.close()


async def test_a_fence_ends_the_waits_of_the_fenced_and_a_roster_those_of_the_others(size):
    h = host(BSP(), size)
    pull, seen = waiting(h, 10, 1)
    alone = asyncio.ensure_future(h.push_pull(push(h, 10, 0, 5.0), pull, after()))
    fenced = asyncio.ensure_future(h.pull(waiting(h, 11, 1)[0], after()))
    await turns()
    assert h.fence(11) == 0
    with pytest.raises(Evicted, match="'b'"):
        await fenced
    assert await h.publish(Roster(2, (A, Entry(1, 11, 2, "b", 0, 0)), ready=True))
    await alone
    assert np.all(seen == -5)
    await h.close()


async def test_a_pause_holds_a_step_and_ends_by_itself(size):
    h = host(BSP(), size)
    assert h.pause(0.05) == 0
    await h.push(push(h, 10, 0), after())
    await h.push(push(h, 11, 0), after())
    assert h.gate.next_step == 0
    await h.pull(waiting(h, 10, 1)[0], after())
    assert h.gate.next_step == 1
    await h.close()


async def test_dropping_a_table_ends_every_wait(size):
    h = host(BSP(), size)
    pull = asyncio.ensure_future(h.pull(waiting(h, 10, 1)[0], after()))
    await asyncio.sleep(0)
    h.drop(UnknownTable("it was dropped"))
    with pytest.raises(UnknownTable, match="dropped"):
        await pull


async def test_a_cancelled_push_leaves_the_next_one_intact(size):
    h = host(BSP(), size)
    stuck = asyncio.Event()

    async def never() -> Gradient:
        stuck.set()
        await asyncio.Event().wait()
        raise AssertionError

    half = asyncio.ensure_future(h.push(Push(10, 1, 0, never), after()))
    await stuck.wait()
    half.cancel()
    assert await h.push(push(h, 10, 0, 2.0), after()) is Outcome.STAGED
    await h.push(push(h, 11, 0, 4.0), after())
    pull, seen = waiting(h, 10, 1)
    await h.pull(pull, after())
    assert np.all(seen == -3)
    await h.close()


LARGE = 3 * SMALL_BYTES  # three partitions


def arriving(table_host: Host, writer: int, sequence: int, queue: asyncio.Queue[int | None]) -> Push:
    """A push of ones, whose partitions come as their positions do in the queue; None cuts it off."""
    partitions = table_host.table.partitions

    async def gradients():
        while (position := await queue.get()) is not None:
            source = Parts({position: np.ones(partitions[position].size, np.float32)})
            yield Gradient(writer, sequence, source, frozenset({position}))
        raise PeerLost("the connection broke")

    present = range(len(partitions))
    return Push(writer, sequence, sequence - 1, _unused, arriving=gradients, present=present)


async def _unused() -> Gradient:
    raise AssertionError


async def test_partitions_are_applied_and_answered_while_others_are_on_their_way():
    h, queue = host(ASP(), LARGE), asyncio.Queue()
    count = len(h.table.partitions)
    assert count > 2
    pull, seen = waiting(h, 10, 1)
    flow = await h.push_pull_flow(arriving(h, 10, 1, queue), pull, after())
    assert pull.pull.changed == list(range(count))
    assert pull.pull.versions == [2] * count
    queue.put_nowait(1)
    assert await anext(flow) == 1
    first = h.table.packed_offsets[1] // 4
    assert np.all(seen[first : first + h.table.partitions[1].size] == -1)
    assert h.gate.next_step == 0
    for position in {*range(count)} - {1}:
        queue.put_nowait(position)
        assert await anext(flow) == position
    assert h.gate.outcome(10, 0) is Outcome.APPLIED
    assert np.all(seen == -1)
    assert h.table.versions == [2] * count


async def test_a_push_that_broke_off_is_finished_by_its_repetition_and_counts_once():
    h, queue = host(ASP(), LARGE), asyncio.Queue()
    count = len(h.table.partitions)
    for item in (2, None):
        queue.put_nowait(item)
    with pytest.raises(PeerLost, match="broke"):
        await h.push(arriving(h, 10, 1, queue), after())
    pull, seen = waiting(h, 10, 1)
    flow = await h.push_pull_flow(arriving(h, 10, 1, queue), pull, after())
    assert pull.pull.versions == [2] * count
    for position in range(count):
        queue.put_nowait(position)
        assert await anext(flow) == position
    assert np.all(seen == -1)
    assert h.table.versions == [2] * count
    assert h.table.dedupe[0].through(10) == 1


async def test_what_had_no_gradient_comes_along_if_it_is_wanted_and_versions_never_run_ahead():
    h, queue = host(ASP(), LARGE), asyncio.Queue()
    count = len(h.table.partitions)
    push_1 = arriving(h, 10, 1, queue)
    push_1.present = [1]
    pull, seen = waiting(h, 10, 1)
    pull.pull.known = [0] + [1] * (count - 1)
    flow = await h.push_pull_flow(push_1, pull, after())
    assert pull.pull.changed == [0, 1]
    assert pull.pull.versions == [1, 2]
    assert await anext(flow) == 0
    await h.push(push(h, 11, 0, 5.0), after())  # another writer, meanwhile
    queue.put_nowait(1)
    assert await anext(flow) == 1
    assert h.table.versions[1] == 3
    first = h.table.packed_offsets[1] // 4
    assert seen[first] == -6


async def test_a_writer_fenced_on_the_way_changes_nothing_any_more():
    h, queue = host(ASP(), LARGE), asyncio.Queue()
    flow = await h.push_pull_flow(arriving(h, 10, 1, queue), waiting(h, 10, 1)[0], after())
    queue.put_nowait(0)
    assert await anext(flow) == 0
    h.fence(10)
    queue.put_nowait(1)
    with pytest.raises(Evicted):
        await anext(flow)
    assert h.table.versions[1] == 1


async def test_bsp_takes_a_push_whole():
    h = host(BSP(), LARGE)
    assert await h.push_pull_flow(arriving(h, 10, 1, asyncio.Queue()), waiting(h, 10, 1)[0], after()) is None


async def test_with_spares_a_push_whose_step_is_closed_while_it_arrives_is_dropped_and_leaves_nothing(size):
    h = host(BSP(trainers=2, spares=1), size)
    arrived = asyncio.Event()
    late = push(h, 11, 0)
    receive = late.receive

    async def slowly() -> Gradient:
        await arrived.wait()
        return await receive()

    late.receive = slowly
    coming = asyncio.ensure_future(h.push(late, after()))
    await turns()
    await h.push(push(h, 10, 0), after())
    await h.publish(Roster(2, (A, B), ready=True, seals=(Seal(0, (0,)),)))
    await h.close()
    arrived.set()
    assert await coming is Outcome.DROPPED
    assert not h.table._staged
    assert all(dedupe.through(11) == 1 for dedupe in h.table.dedupe)
    for step in (1, 2):  # the next ones find their place
        await h.push(push(h, 11, step), after())
        await h.publish(Roster(2 + step, (A, B), ready=True, seals=(Seal(step, (1,)),)))
        await h.close()
    assert h.gate.next_step == 3
    assert np.all(h.table.values(0) == -3)


async def test_with_spares_who_is_far_behind_is_dropped_and_told_the_truth_about_what_counted(size):
    h = host(BSP(trainers=2, spares=1), size)
    await h.push(push(h, 11, 0), after())
    for step in range(WINDOW + 2):
        await h.push(push(h, 10, step), after())
        seal = Seal(step, (0, 1) if step == 0 else (0,))
        await h.publish(Roster(2 + step, (A, B), ready=True, seals=(seal,)))
        await h.close()
    assert await h.push(push(h, 11, 0), after()) is Outcome.APPLIED  # its answer was lost
    assert await h.push(push(h, 11, 1), after()) is Outcome.DROPPED
    assert h.gate.outcome(11, 1) is Outcome.DROPPED
    assert h.table.dedupe[0].through(11) == 2


async def test_a_gradient_that_arrives_after_its_writer_was_fenced_is_not_applied_again(size):
    h = host(ASP(), size)
    assert await h.push(push(h, 11, 0), after()) is Outcome.APPLIED
    again = push(h, 11, 0)
    receive = again.receive

    async def fenced_meanwhile() -> Gradient:
        h.fence(11)
        await h.publish(Roster(2, (A, Entry(1, 11, 2, "b", 0, 1)), ready=True))
        return await receive()

    again.receive = fenced_meanwhile
    with pytest.raises(Evicted):
        await h.push(again, after())
    assert np.all(h.table.values(0) == -1)
