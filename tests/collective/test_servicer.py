"""What other ranks and strangers may send: bad input is answered by typed errors, and the service goes on."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
from seats import Group, World, soon

from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.post import Key
from psframework.collective.servicer import CollectiveService
from psframework.errors import NotRegistered, PeerLost, PermissionDenied, PsfError, WireError
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.call import Call, PeerInfo
from psframework.rpc.status import error_to_detail


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        world = World(stack)
        await world.group()
        await world.hire("stranger")
        yield world


ID = pb.GroupId(job="j", name="g", generation=1)


async def tell(world: World, sender: str, method: str, **fields: Any) -> Any:
    """A message of `sender` to rank 0."""
    request, reply = getattr(pb, f"{method}Request"), getattr(pb, f"{method}Reply")
    message = request(**{"group": ID} | fields)
    return await world.members[sender].ask(world.members["a"], method, message, reply)


async def test_a_letter_for_a_generation_that_has_ended_is_answered(world: World) -> None:
    a = world.members["a"]
    a.leave(a.seats[0])
    assert (await tell(world, "b", "Deliver", source=1)).closed
    assert await tell(world, "b", "Abort", source=1) == pb.AbortReply()


@pytest.mark.parametrize(
    ("sender", "method", "fields", "error", "text"),
    [
        ("b", "Deliver", {"group": pb.GroupId(job="j", name="h", generation=1)}, NotRegistered, "group 'h'"),
        (
            "b",
            "Deliver",
            {"group": pb.GroupId(job="j", name="g", generation=9)},
            NotRegistered,
            "generation 9",
        ),
        ("b", "Deliver", {"group": pb.GroupId()}, NotRegistered, "a is not in"),
        ("b", "Deliver", {"source": 2}, PermissionDenied, "b is not rank 2"),
        ("b", "Deliver", {"source": 77}, PermissionDenied, "b is not rank 77"),
        ("stranger", "Deliver", {"source": 1}, PermissionDenied, "stranger is not in generation 1"),
        ("stranger", "Abort", {"source": 1}, PermissionDenied, "stranger is not in"),
        ("stranger", "Report", {}, PermissionDenied, "stranger is not in"),
        ("stranger", "Setup", {"local": [0, 1]}, PermissionDenied, "stranger is not in"),
        ("c", "Abort", {"source": 1}, PermissionDenied, "c is not rank 1"),
        ("b", "Setup", {"local": []}, WireError, "can't be right"),
        ("b", "Setup", {"local": [1, 2]}, WireError, "can't be right"),
        ("b", "Setup", {"local": [1, 0]}, WireError, "can't be right"),
        ("b", "Setup", {"local": [0, 99]}, WireError, "can't be right"),
        ("b", "Setup", {"local": [0, 1]}, PermissionDenied, "b is not rank 0"),
    ],
)
async def test_bad_messages(
    world: World, sender: str, method: str, fields: dict[str, Any], error: type[PsfError], text: str
) -> None:
    with pytest.raises(error, match=text):
        await tell(world, sender, method, **fields)
    (seat,) = world.members["a"].seats
    assert seat.error is None
    await tell(world, "b", "Deliver", source=1, sequence=1, header=b"fine")
    assert (await seat.post.receive(1, Key("", 1), soon())).header == b"fine"


async def test_a_segment_that_was_not_shared(world: World) -> None:
    (seat,) = world.members["c"].seats
    request = pb.SetupRequest(group=ID, local=[1, 2], segment=5)
    with pytest.raises(WireError, match="no segment 5"):
        await world.members["b"].ask(world.members["c"], "Setup", request, pb.SetupReply)
    assert seat.error is None


async def test_the_same_letter_twice(world: World) -> None:
    await tell(world, "b", "Deliver", source=1, sequence=1)
    with pytest.raises(WireError, match="twice"):
        await tell(world, "b", "Deliver", source=1, sequence=1)
    await tell(world, "b", "Deliver", source=1, sequence=2)


async def test_an_abort_says_why(world: World) -> None:
    (seat,) = world.members["a"].seats
    error = PeerLost("rank 2 (c) is gone", peer="c", rank=2)
    await tell(world, "b", "Abort", source=1, error=error_to_detail(error))
    assert isinstance(seat.error, PeerLost)
    assert (str(seat.error), seat.error.rank) == (str(error), 2)
    await tell(world, "c", "Abort", source=2, error=error_to_detail(error))
    assert len(world.members["a"].passed_on) == 1  # else it would go around for ever


async def test_an_orderly_end(world: World) -> None:
    (seat,) = world.members["a"].seats
    group = Group()
    seat.group = cast(Any, group)
    await tell(world, "b", "Abort", source=1, completed=4)
    assert seat.departed == {1}
    assert [after for _, after in group.ends] == [4]


async def test_who_leaves_because_another_is_gone_says_so(world: World) -> None:
    (seat,) = world.members["a"].seats
    group = Group()
    seat.group = cast(Any, group)
    lost = PeerLost("rank 2 (c) has closed group 'g' after operation 4", peer="c", rank=2)
    await tell(world, "b", "Abort", source=1, completed=4, error=error_to_detail(lost))
    ((error, after),) = group.ends
    assert (str(error), cast(PeerLost, error).rank, after) == (str(lost), 2, 4)
    assert seat.departed == {1} and seat.error is None  # what b took part in may end well


async def test_a_report_says_where_the_rank_is(world: World) -> None:
    (seat,) = world.members["a"].seats
    assert await tell(world, "b", "Report") == pb.ReportReply()  # it is not set up yet
    group = Group()
    seat.group = cast(Any, group)
    done, runs = Descriptor(3, Operation.BARRIER), Descriptor(4, Operation.BARRIER)
    first = group.recorder.called(done)
    group.recorder.started(first, done)
    group.recorder.ended(first, None)
    group.recorder.started(group.recorder.called(runs), runs)
    reply = await tell(world, "b", "Report")
    assert (reply.completed, reply.completed_text, reply.running, reply.running_text) == (
        3, "barrier()", 4, "barrier()",
    )  # fmt: skip


async def test_it_needs_a_session(world: World) -> None:
    """An ordinary stub proves no incarnation."""
    service = CollectiveService(world.members["a"])
    call = Call(PeerInfo("b", "worker", "", 0), soon())
    for answer in (
        service.deliver(pb.DeliverRequest(group=ID, source=1), call),
        service.abort(pb.AbortRequest(group=ID, source=1), call),
        service.report(pb.ReportRequest(group=ID), call),
        service.setup(pb.SetupRequest(group=ID, local=[0, 1]), call),
    ):
        with pytest.raises(PermissionDenied, match="need a session"):
            await answer
