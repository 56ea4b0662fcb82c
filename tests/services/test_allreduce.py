"""`python -m services.allreduce` alone: health, reflection, and groups of clients with stock stubs."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from psframework.cluster.process import ServiceProcess, child_environment
from psframework.collective.algorithms import combine
from psframework.collective.ops import ReduceOp
from psframework.errors import (
    CollectiveMismatch,
    NotRegistered,
    PeerLost,
    PermissionDenied,
    PsfError,
    StaleTerm,
    WireError,
)
from psframework.proto.v1 import allreduce_pb2 as pb
from psframework.proto.v1.allreduce_pb2_grpc import AllreduceServiceStub
from psframework.rpc.status import from_rpc_error

CLIENT = """
import sys, grpc, numpy as np
from psframework.proto.v1 import allreduce_pb2 as pb
from psframework.proto.v1.allreduce_pb2_grpc import AllreduceServiceStub

address, group, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
with grpc.insecure_channel(address) as channel:
    stub = AllreduceServiceStub(channel)
    seat = stub.Join(pb.JoinGroupRequest(group=group, size=2, name="doomed", rank=rank), timeout=20).seat
    print("joined", flush=True)
    stub.Run(
        pb.RunRequest(
            seat=seat, sequence=1, operation=pb.COLLECTIVE_OPERATION_BARRIER
        ), timeout=60
    )
"""


@asynccontextmanager
async def service(*flags: str) -> AsyncIterator[ServiceProcess]:
    process = ServiceProcess("allreduce", "services.allreduce", flags)
    process.start()
    try:
        await process.wait_serving(30)
        yield process
    finally:
        await process.stop(5)
        assert process.returncode == 0, process.last_words


@pytest.fixture(scope="module")
async def address() -> AsyncIterator[str]:
    async with service("--memory-limit", str(1 << 20)) as process:
        yield process.address


class Client:
    """One client with a generated stub; knows nothing of this framework."""

    def __init__(self, stub: AllreduceServiceStub, seat: pb.Seat, names: list[str]) -> None:
        self.stub, self.seat, self.names = stub, seat, names
        self.sequence = 0

    async def run(
        self,
        array: np.ndarray,
        operation: int = pb.COLLECTIVE_OPERATION_ALL_REDUCE,
        timeout: float = 20,
    ) -> np.ndarray:
        self.sequence += 1
        request = pb.RunRequest(
            seat=self.seat,
            sequence=self.sequence,
            operation=operation,
            reduction=pb.REDUCTION_SUM,
            dtype=array.dtype.name,
            shape=array.shape,
            data=array.tobytes(),
        )
        return np.frombuffer((await typed(self.stub.Run(request, timeout=timeout))).data, array.dtype)


async def typed(call):
    """The reply, or the error that the service meant."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from None


@asynccontextmanager
async def clients(address: str, group: str, size: int) -> AsyncIterator[list[Client]]:
    """By rank; each on a connection of its own."""
    channels = [
        grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(size)
    ]
    stubs = [AllreduceServiceStub(channel) for channel in channels]
    joins = [
        typed(stub.Join(pb.JoinGroupRequest(group=group, size=size, name=f"client-{index}"), timeout=20))
        for index, stub in enumerate(stubs)
    ]
    replies = await asyncio.gather(*joins)
    made = [Client(stub, reply.seat, list(reply.names)) for stub, reply in zip(stubs, replies)]
    try:
        yield sorted(made, key=lambda client: client.seat.rank)
    finally:
        for client in made:
            try:
                await typed(client.stub.Leave(pb.LeaveGroupRequest(seat=client.seat), timeout=5))
            except PsfError:
                pass  # its group is over already
        for channel in channels:
            await channel.close()


def test_health_and_reflection(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service="psframework.proto.v1.AllreduceService")
        health = health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        reply = next(iter(stub.ServerReflectionInfo(iter([ask]), timeout=10)))
        assert "psframework.proto.v1.AllreduceService" in {
            service.name for service in reply.list_services_response.service
        }


async def test_three_clients_get_ranks_and_reduce(address: str) -> None:
    async with clients(address, "three", 3) as ranks:
        assert [client.seat.rank for client in ranks] == [0, 1, 2]
        assert ranks[0].names == ranks[2].names and set(ranks[0].names) == {f"client-{i}" for i in range(3)}
        arrays = list(np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32))
        got = await asyncio.gather(*(client.run(array) for client, array in zip(ranks, arrays)))
        wanted = combine(ReduceOp.SUM, arrays, 3).tobytes()
        assert [array.tobytes() for array in got] == [wanted] * 3, "in the order of ranks"
        operation = pb.COLLECTIVE_OPERATION_ALL_GATHER
        got = await asyncio.gather(*(client.run(array, operation) for client, array in zip(ranks, arrays)))
        assert all(array.tobytes() == np.concatenate(arrays).tobytes() for array in got)


async def test_a_difference_is_told_to_all_and_the_group_goes_on(address: str) -> None:
    async with clients(address, "differ", 2) as (one, two):
        errors = await asyncio.gather(
            one.run(np.zeros(3, np.float32)), two.run(np.zeros(4, np.float32)), return_exceptions=True
        )
        assert all(isinstance(error, CollectiveMismatch) for error in errors)
        assert len({str(error) for error in errors}) == 1
        assert "rank 0 (client-" in str(errors[0]) and "(3,)" in str(errors[0]) and "(4,)" in str(errors[0])
        got = await asyncio.gather(one.run(np.ones(2)), two.run(np.ones(2)))
        assert [array.tolist() for array in got] == [[2, 2], [2, 2]]


async def test_bad_input_is_a_typed_error_of_its_sender_alone(address: str) -> None:
    async with clients(address, "bad", 2) as (one, two):
        waiting = asyncio.ensure_future(one.run(np.ones(2)))
        seat, run = two.seat, two.stub.Run

        def request(**changes) -> pb.RunRequest:
            made = pb.RunRequest(
                seat=seat, sequence=1, operation=pb.COLLECTIVE_OPERATION_ALL_REDUCE,
                reduction=pb.REDUCTION_SUM, dtype="float64", shape=[2], data=bytes(16),
            )  # fmt: skip
            made.MergeFrom(pb.RunRequest(**changes))
            return made

        elsewhere = pb.Seat(group="nowhere")
        other = pb.Seat(generation=seat.generation + 1)
        for error, text, changes in (
            (NotRegistered, "nowhere", {"seat": elsewhere}),
            (StaleTerm, "generation", {"seat": other}),
            (PermissionDenied, "not yours", {"seat": pb.Seat(secret=seat.secret + 1)}),
            (WireError, "takes 24 bytes", {"shape": []}),
            (PsfError, "next one is 1", {"sequence": 7}),
            (PsfError, "no operation", {"operation": 77}),
            (PsfError, "AVG of int32", {"dtype": "int32", "reduction": pb.REDUCTION_AVG}),
            (PsfError, "dtype 'object'", {"dtype": "object"}),
        ):
            made = request(**changes)
            if text == "takes 24 bytes":
                made.ClearField("shape")
                made.shape.append(3)
            with pytest.raises(error, match=text):
                await typed(run(made, timeout=10))
        stolen = pb.RunRequest(seat=seat, sequence=1, operation=pb.COLLECTIVE_OPERATION_BARRIER)
        stolen.seat.rank = one.seat.rank
        with pytest.raises(PermissionDenied, match="not yours"):
            await typed(run(stolen, timeout=10))
        repeated = pb.RunRequest(seat=one.seat, sequence=1, operation=pb.COLLECTIVE_OPERATION_BARRIER)
        with pytest.raises(PsfError, match=r"has come to operation 1 .* already"):
            await typed(run(repeated, timeout=10))
        assert not waiting.done(), "the others never notice"
        assert (await two.run(np.ones(2))).tolist() == [2, 2]
        assert (await waiting).tolist() == [2, 2]


async def test_no_room_says_when_to_try_again_or_never(address: str) -> None:
    async with clients(address, "first", 2) as (one, two), clients(address, "second", 2) as (three, _):
        large = np.zeros(80_000)  # of 1 MiB, a half goes for two ranks' arrays and the result
        waiting = asyncio.ensure_future(one.run(large[:40_000]))
        await asyncio.sleep(0)
        while not waiting.done():
            with pytest.raises(PsfError) as caught:
                await three.run(large[:40_000], timeout=0.5)
            if "are in use" in str(caught.value):
                break
            three.sequence = 0
        assert caught.value.retry_after > 0  # type: ignore[attr-defined]
        three.sequence = 0
        with pytest.raises(PsfError, match="takes 1920000 bytes") as caught:
            await three.run(large)
        assert caught.value.retry_after == 0, "a retry can't help"  # type: ignore[attr-defined]
        await two.run(large[:40_000])
        await waiting


async def test_a_client_that_dies_is_lost_at_once_and_its_place_is_free(address: str) -> None:
    async with clients(address, "alone", 1):
        pass
    async with grpc.aio.insecure_channel(address) as channel:
        stub = AllreduceServiceStub(channel)
        program = [sys.executable, "-c", CLIENT, address, "mortal", "1"]
        child = await asyncio.create_subprocess_exec(
            *program, stdout=asyncio.subprocess.PIPE, env=child_environment()
        )
        reply = await typed(stub.Join(pb.JoinGroupRequest(group="mortal", size=2, name="here"), timeout=30))
        assert list(reply.names) == ["here", "doomed"]
        assert child.stdout is not None
        await child.stdout.readline()
        client = Client(stub, reply.seat, list(reply.names))
        await asyncio.sleep(0.2)
        child.send_signal(signal.SIGKILL)
        began = time.monotonic()
        await child.wait()
        with pytest.raises(PeerLost, match=r"rank 1 \(doomed\)") as caught:
            await client.run(np.ones(1), timeout=20)
        assert time.monotonic() - began < 3
        assert caught.value.peer == "doomed"
        assert caught.value.rank == 1
    async with clients(address, "mortal", 2) as ranks:
        assert ranks[0].seat.generation > reply.seat.generation


async def test_who_is_missing_at_the_deadline(address: str) -> None:
    async with clients(address, "late", 3) as (one, two, three):
        await asyncio.gather(*(client.run(np.ones(1)) for client in (one, two, three)))
        waiting = asyncio.ensure_future(two.run(np.ones(1), timeout=30))
        with pytest.raises(PsfError, match=r"in vain for rank 2 \(client-\d\), whose last was operation 1"):
            await one.run(np.ones(1), timeout=1)
        with pytest.raises(PsfError, match="in vain for rank 2"):
            await waiting
        with pytest.raises(PsfError, match="in vain for rank 2"):
            await three.run(np.ones(1))


async def test_one_that_leaves_ends_the_operation_of_the_others(address: str) -> None:
    async with clients(address, "leaving", 2) as (one, two):
        waiting = asyncio.ensure_future(one.run(np.ones(1)))
        leave = pb.LeaveGroupRequest(seat=two.seat, reason="had enough")
        await asyncio.sleep(0.1)
        await typed(two.stub.Leave(leave, timeout=5))
        with pytest.raises(PeerLost, match=r"rank 1 \(client-\d\) .* has left: had enough"):
            await waiting


async def test_the_end_of_the_service_ends_all_waits() -> None:
    async with service() as process:
        async with clients(process.address, "ending", 2) as (one, _):
            waiting = asyncio.ensure_future(one.run(np.ones(1)))
            await asyncio.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            with pytest.raises(PeerLost):
                await waiting
            assert await process.wait(5) == 0
            assert time.monotonic() - began < 4
