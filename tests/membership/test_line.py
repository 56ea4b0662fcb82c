"""The line to the coordinator: addresses in turn, terms, and errors that are answers."""

import asyncio
import logging
import socket

import grpc
import pytest

from psframework.errors import ConfigurationError, ContextClosed, DeadlineExceeded, NotRegistered, StaleTerm
from psframework.membership import line as lines
from psframework.membership.line import Addresses, Line, Terms
from psframework.membership.store import MemoryStore
from psframework.proto.v1 import coordinator_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.rpc.security.credentials import Security


def test_addresses_take_turns_once_for_each_failure() -> None:
    addresses = Addresses(["a:1", "b:2"])
    assert addresses.current == "a:1"
    addresses.failed("a:1")
    addresses.failed("a:1")  # another call of before the change
    assert addresses.current == "b:2"
    addresses.failed("b:2")
    assert addresses.current == "a:1"
    with pytest.raises(ConfigurationError):
        Addresses([])


def test_terms_only_rise() -> None:
    terms = Terms()
    terms.observe(pb.RenewResponse(term=3), "a:1")
    terms.observe(pb.RenewResponse(term=3), "a:1")
    with pytest.raises(StaleTerm, match="a:1 answered in term 2, but term 3 has begun"):
        terms.observe(pb.RenewResponse(term=2), "a:1")
    assert terms.highest == 3


async def members(line: Line, seconds: float = 10.0) -> pb.ListMembersResponse:
    return await line.call(
        "ListMembers", pb.ListMembersRequest(), pb.ListMembersResponse, Deadline.after(seconds)
    )


async def test_a_stale_coordinator_is_passed_over(start) -> None:
    newer = MemoryStore()
    for _ in range(4):
        newer.open()
    async with start() as old, start(newer) as new:
        async with Line(new.addresses + old.addresses, Security.plaintext()) as line:
            assert (await members(line)).term == 5
            line.addresses.failed(new.addresses[0])
            assert (await members(line)).term == 5  # the old one refused, or was refused
        async with Line(old.addresses, Security.plaintext()) as line:
            line.terms.highest = 5
            with pytest.raises(DeadlineExceeded, match=r"term 1.*5"):
                await members(line, 0.3)


async def test_an_answer_is_not_tried_again(served) -> None:
    async with Line(served.addresses, Security.plaintext()) as line:
        with pytest.raises(NotRegistered):
            await line.call(
                "NoSuchMethod", pb.ListMembersRequest(), pb.ListMembersResponse, Deadline.after(10)
            )
        updates = []
        await line.call(
            "ListMembers",
            pb.ListMembersRequest(),
            pb.ListMembersResponse,
            Deadline.after(10),
            before=lambda: updates.append(1),
        )
        assert updates == [1]


async def test_an_address_at_which_nobody_listens_is_told_long_before_the_deadline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lines, "SILENCE_SECONDS", 0.1)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but it does not listen
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        async with Line([address], Security.plaintext()) as line:
            with (
                caplog.at_level(logging.WARNING, lines.__name__),
                pytest.raises(DeadlineExceeded, match=address),
            ):
                await members(line, 1.0)
    told = [record.getMessage() for record in caplog.records if record.name == lines.__name__]
    assert len(told) == 1 and told[0].startswith("no answer yet") and address in told[0]


async def test_who_is_no_coordinator_is_named() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with Line([f"127.0.0.1:{port}"], Security.plaintext()) as line:
            with pytest.raises(NotRegistered, match=rf"127\.0\.0\.1:{port} is no coordinator"):
                await line.call("Join", pb.JoinRequest(), pb.JoinResponse, Deadline.after(10))
    finally:
        await server.stop(None)


async def test_a_call_that_still_runs_when_the_line_is_closed(served) -> None:
    request = pb.JoinRequest(role="trainer", job="j", lease_seconds=5, timeout_seconds=5)
    async with Line(served.addresses, Security.plaintext()) as line:
        joined = await line.call("Join", request, pb.JoinResponse, Deadline.after(10))
        enter = pb.EnterBarrierRequest(name="b", count=2, incarnation=joined.member.incarnation, entry=1)
        call = line.call("EnterBarrier", enter, pb.EnterBarrierResponse, Deadline.after(30), patient=True)
        waiting = asyncio.create_task(call)
        await members(line)  # it is under way
    with pytest.raises(ContextClosed, match="left the cluster"):
        await waiting
    with pytest.raises(ContextClosed, match="connect again"):
        await members(line)
