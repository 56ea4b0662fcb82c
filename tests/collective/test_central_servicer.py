"""The service's waits: for members, for ranks, for leases; what a call that ends early leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
from collective import describe
from desk_double import Direct

from psframework.collective import central_messages as messages
from psframework.collective.central_servicer import AllreduceServicer
from psframework.collective.descriptor import Descriptor, Operation
from psframework.errors import (
    ArgumentError,
    NameTaken,
    PeerLost,
    PsfError,
    RendezvousTimeout,
    StaleTerm,
    WireError,
)
from psframework.proto.v1 import allreduce_pb2 as pb
from psframework.rpc.call import Call, PeerInfo
from psframework.rpc.deadline import Deadline

BARRIER = Descriptor(1, Operation.BARRIER)


@pytest.fixture
async def service() -> AsyncIterator[AllreduceServicer]:
    async with AllreduceServicer() as made:
        yield made


async def join(service, incarnation: int, seconds: float = 10, **more) -> pb.Seat:
    request = pb.JoinGroupRequest(**({"group": "g", "size": 2} | more))
    direct = Direct(service, incarnation)
    reply, _ = await direct.call(
        messages.path("Join"), request, pb.JoinGroupReply, deadline=Deadline.after(seconds)
    )
    return reply.seat


async def run(service, seat: pb.Seat, incarnation: int, said: Descriptor = BARRIER, parts=(), **more):
    request = messages.to_request(said, seat)
    request.timeout_seconds = more.get("timeout", 0)
    return await Direct(service, incarnation).call(
        messages.path("Run"), request, pb.RunReply, parts=parts, deadline=Deadline.after(more.get("call", 10))
    )


async def pair(service, one: int = 1, two: int = 2, **more) -> tuple[pb.Seat, pb.Seat]:
    return await asyncio.gather(join(service, one, rank=0, **more), join(service, two, rank=1, **more))


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - of things that tell nobody
            await asyncio.sleep(0.005)


async def test_secrets_differ_and_names_are_those_that_were_proven(service):
    one, two = await pair(service, name="somebody else")
    assert one.secret != two.secret
    assert service.desk.groups["g"].names == ["member-1", "member-2"]
    await pair(service, 0, 0, group="h", name="client")
    assert service.desk.groups["h"].names == ["client", "client"]


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        (PeerInfo("ipv4:10.0.0.7:1234", "", "", 0), "mine"),
        (PeerInfo("*", "trainer", "", 0, "psf://c/trainer/%2A"), "mine"),
        (PeerInfo("bob", "trainer", "", 0, "psf://c/trainer/bob"), "bob"),
        (PeerInfo("trainer-3", "trainer", "default", 9), "trainer-3"),
    ],
    ids=["plaintext", "any name of its role", "certificate", "member"],
)
async def test_a_name_can_be_chosen_unless_it_is_proven(service, peer, name):
    call = Call(peer, Deadline.after(10))
    reply = await service.join(pb.JoinGroupRequest(group="g", size=1, name="mine"), call)
    assert list(reply.names) == [name]


async def test_who_waits_for_others_learns_why_in_vain(service):
    with pytest.raises(RendezvousTimeout, match=r"in 0\.05 s 1 of 2 came: member-1"):
        await join(service, 1, timeout_seconds=0.05)
    assert not service.desk.groups
    first = asyncio.ensure_future(join(service, 1, rank=0))
    await until(lambda: service.desk.groups)
    with pytest.raises(NameTaken):
        await join(service, 2, rank=0)
    with pytest.raises(ArgumentError, match="3 ranks"):
        await join(service, 2, size=3)
    with pytest.raises(ArgumentError, match="lease"):
        await join(service, 0, lease_seconds=-1)
    await join(service, 2)
    assert (await first).rank == 0
    with pytest.raises(RendezvousTimeout, match="is complete, and goes on with member-1, member-2"):
        await join(service, 3, timeout_seconds=0.05)


async def test_one_that_waits_for_a_place_gets_it(service):
    one, _ = await pair(service)
    waiting = [asyncio.ensure_future(join(service, 3)), asyncio.ensure_future(join(service, 4))]
    await asyncio.sleep(0.01)
    service.lost(2, "lease")
    assert sorted([(await each).rank for each in waiting]) == [0, 1]
    with pytest.raises(StaleTerm):
        await run(service, one, 1)


async def test_a_join_that_is_cancelled_makes_room(service):
    waiting = asyncio.ensure_future(join(service, 1))
    await until(lambda: service.desk.groups)
    waiting.cancel()
    await until(lambda: not service.desk.groups)
    await pair(service, 2, 3)


async def test_a_later_generation_sends_those_who_wait_for_an_earlier_one_away(service):
    waiting = asyncio.ensure_future(join(service, 1, generation=4))
    await until(lambda: service.desk.groups)
    await pair(service, 2, 3, generation=5)
    with pytest.raises(StaleTerm):
        await waiting


async def test_a_member_that_is_lost_ends_the_operation(service):
    one, _ = await pair(service)
    waiting = asyncio.ensure_future(run(service, one, 1))
    await until(lambda: service.desk.groups["g"].round is not None)
    service.lost(2, "stalled")
    with pytest.raises(PeerLost, match=r"rank 1 \(member-2\)") as caught:
        await waiting
    assert (caught.value.peer, caught.value.reason, caught.value.rank) == ("member-2", "stalled", 1)


async def test_a_call_that_is_cancelled_ends_the_group(service):
    one, two = await pair(service)
    waiting = asyncio.ensure_future(run(service, one, 1))
    await until(lambda: service.desk.groups["g"].round is not None)
    waiting.cancel()
    await asyncio.wait([waiting])
    with pytest.raises(PeerLost, match=r"rank 0 \(member-1\) .* gave up operation 1"):
        await run(service, two, 2)


async def test_a_silent_client_is_lost_after_its_lease_while_another_waits(service):
    one, _ = await pair(service, 0, 0, name="client", lease_seconds=0.2)
    with pytest.raises(PeerLost, match=r"rank 1 \(client\) .* made no call for") as caught:
        await run(service, one, 0)
    assert caught.value.reason == "lease"
    await until(lambda: not service.desk.groups)  # the other is silent from here on


async def test_the_answer_comes_before_the_deadline_of_the_call(service):
    one, _ = await pair(service)
    with pytest.raises(PsfError, match=r"in vain for rank 1 \(member-2\)"):
        await run(service, one, 1, call=0.5)


async def test_who_waits_for_nothing_but_a_computation_gets_its_result(service, monkeypatch):
    one, two = await pair(service)
    array = np.ones(100_000)
    said = describe(Operation.ALL_REDUCE, array)
    group, gate = service.desk.groups["g"], asyncio.Event()
    loop, compute = asyncio.get_running_loop(), group.compute

    def slow(round_):
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(10)
        return compute(round_)

    monkeypatch.setattr(group, "compute", slow)
    runs = [
        asyncio.ensure_future(run(service, seat, n, said, [array.data], timeout=0.05))
        for n, seat in ((1, one), (2, two))
    ]
    await asyncio.sleep(0.1)
    service.lost(2, "lease")  # what it gave is there
    gate.set()
    for each in runs:
        _, (data,) = await each
        assert np.frombuffer(data).tolist() == [2.0] * len(array)
    with pytest.raises(PeerLost):
        await run(service, one, 1, Descriptor(2, Operation.BARRIER))


async def test_a_failure_of_the_computation_is_told_and_others_live_on(service, monkeypatch):
    one, two = await pair(service)
    three, four = await pair(service, 3, 4, group="h")

    def fail(round_):
        raise MemoryError("no room")

    monkeypatch.setattr(service.desk.groups["g"], "compute", fail)
    got = await asyncio.gather(run(service, one, 1), run(service, two, 2), return_exceptions=True)
    assert all(isinstance(each, PsfError) and "MemoryError('no room')" in str(each) for each in got)
    await asyncio.gather(run(service, three, 3), run(service, four, 4))


async def test_nonsense_is_refused_before_the_rank_counts(service):
    one, two = await pair(service)
    said = describe(Operation.ALL_REDUCE, np.ones(2))
    with pytest.raises(WireError, match="takes 16 bytes of data, 3 came"):
        await run(service, one, 1, said, [b"abc"])
    with pytest.raises(WireError, match="takes 0 bytes"):
        await run(service, one, 1, BARRIER, [b"abc"])
    assert service.desk.groups["g"].round is None
    await asyncio.gather(run(service, one, 1), run(service, two, 2))
    assert service.desk.used == 0


async def test_errors_do_not_keep_arrays(service):
    one, _ = await pair(service)
    array = np.ones(1000)
    waiting = asyncio.ensure_future(run(service, one, 1, describe(Operation.ALL_REDUCE, array), [array.data]))
    await until(lambda: service.desk.groups["g"].round is not None)
    service.lost(2, "closed")
    with pytest.raises(PeerLost):
        await waiting
    assert service.desk.used == 0
    error = service.desk.groups["g"].error
    assert error is not None and error.__traceback__ is None


async def test_draining_ends_all_waits(service):
    one, _ = await pair(service)
    waits = [
        asyncio.ensure_future(run(service, one, 1)),
        asyncio.ensure_future(join(service, 3, group="h")),
    ]
    await until(lambda: len(service.desk.groups) == 2 and service.desk.groups["g"].round is not None)
    service.drain()
    for each in waits:
        with pytest.raises(PeerLost, match="the allreduce service ends"):
            await each
