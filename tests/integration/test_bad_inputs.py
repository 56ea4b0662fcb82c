"""What users and strangers get wrong, as one table: (input, exception class, words). The services live on."""

import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from psframework.cli.demo.model_file import load_model
from psframework.cli.serve import find_service
from psframework.cluster.connect import connect
from psframework.cluster.process import ServiceProcess
from psframework.errors import (
    AddressInUse,
    CheckpointError,
    ModelMismatch,
    NotRegistered,
    PermissionDenied,
    PsfError,
    UnknownTable,
    WireError,
)
from psframework.nn import Linear
from psframework.optim import SGD
from psframework.proto.v1 import call_pb2
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.rpc import certificates, frames
from psframework.rpc.deadline import Deadline
from psframework.rpc.handshake import read_welcome
from psframework.rpc.security import Security
from psframework.rpc.serve import serve
from psframework.rpc.status import from_rpc_error

SHARD, KEEPER = "/psframework.proto.v1.ParameterServerService/", "/psframework.proto.v1.ModelService/"


@dataclass(frozen=True)
class World:
    """A coordinator and a shard with mutual TLS, and the folder of all certificates."""

    coordinator: str
    shard: str
    certificates: Path

    def security(self, role: str = "trainer") -> Security:
        return Security.from_files(self.certificates / role)

    async def unary(self, path: str, data: bytes, role: str = "trainer", address: str = "") -> bytes:
        """One call of a stranger's making, its bytes as they are."""
        server = "coordinator" if address == self.coordinator else "parameter-server"
        channel = self.security(role).channel(address or self.shard, role=server)
        try:
            return await channel.unary_unary(path)(data, timeout=10)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        finally:
            await channel.close()

    async def stream(self, message: bytes) -> None:
        """One message on the call stream of the shard."""
        channel = self.security().channel(self.shard, role="parameter-server")
        call = channel.stream_stream("/psframework.proto.v1.CallService/Connect")()
        try:
            await call.write(message)
            read_welcome(await call.read())
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        finally:
            call.cancel()
            await channel.close()


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("world")
    certificates.init(folder / "good")
    certificates.init(folder / "foreign")
    for role in ("coordinator", "parameter-server", "trainer"):
        certificates.issue(folder / "good", role, out=folder / role)
    certificates.issue(folder / "foreign", "trainer", out=folder / "stranger")
    async with AsyncExitStack() as stack:
        state = ["--state", str(folder / "state.sqlite")]
        coordinator = await start(stack, "coordinator", folder, state)
        await coordinator.wait_serving(30)
        told = ["--coordinator", coordinator.address, "--name", "parameter-server-0"]
        shard = await start(stack, "parameter-server", folder, told)
        await shard.wait_serving(30, joined=True)
        yield World(coordinator.address, shard.address, folder)
        assert coordinator.alive
        assert shard.alive


async def start(stack: AsyncExitStack, role: str, folder: Path, arguments: list[str]) -> ServiceProcess:
    module = f"services.{role.replace('-', '_')}"
    process = ServiceProcess(role, module, ["--tls-dir", str(folder / role), *arguments])
    process.start()
    stack.push_async_callback(process.stop, 5.0)
    return process


async def unknown_service(world: World) -> None:
    find_service("parameter-serv")


async def unknown_method(world: World) -> None:
    await world.unary("/psframework.proto.v1.ParameterServerServic/Pull", b"")


async def port_in_use(world: World) -> None:
    async with serve(bind=world.shard, security=world.security("parameter-server")):
        pass


async def wrong_certificate(world: World) -> None:
    async with connect(world.coordinator, tls=world.certificates / "stranger", timeout=3):
        pass


async def certificate_of_another_role(world: World) -> None:
    await world.unary(SHARD + "DropTable", pb.DropTableRequest(table="default/model").SerializeToString())


async def service_of_another_role(world: World) -> None:
    channel = world.security().channel(world.shard, role="coordinator")
    try:
        await channel.unary_unary(KEEPER + "ListModels")(b"", timeout=5)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from None
    finally:
        await channel.close()


async def claims_another_role(world: World) -> None:
    hello = call_pb2.Hello(protocol=frames.PROTOCOL, session=os.urandom(16), connection=1)
    hello.sender.CopyFrom(call_pb2.Identity(name="x", role="coordinator", incarnation=1))
    hello.state.window = 1 << 20
    await world.stream(call_pb2.FrameBatch(hello=hello).SerializeToString())


async def ten_gigabytes_in_a_header(world: World) -> None:
    await world.unary(SHARD + "Push", b"\x7a" + varint(10 << 30) + b"short")


async def ten_gigabytes_on_the_stream(world: World) -> None:
    await world.stream(b"\x32" + varint(10 << 30) + b"short")


async def random_bytes_as_a_message(world: World) -> None:
    await world.unary(SHARD + "Push", bytes(range(255, 0, -1)) * 40)


async def random_bytes_on_the_stream(world: World) -> None:
    await world.stream(bytes(range(255, 0, -1)) * 40)


async def a_shape_that_does_not_match(world: World) -> None:
    async with connect(world.coordinator, tls=world.certificates / "trainer") as cluster:
        await cluster.parameter_server(Linear(4, 4), "shapes", optimizer=SGD(lr=1.0))
        await cluster.parameter_server(Linear(5, 4), "shapes", optimizer=SGD(lr=1.0))


async def a_push_before_a_register(world: World) -> None:
    request = pb.PushRequest(table="default/nobody", writer=1, sequence=1, data=b"1234")
    await world.unary(SHARD + "Push", request.SerializeToString())


async def a_push_of_an_unknown_writer(world: World) -> None:
    async with connect(world.coordinator, tls=world.certificates / "trainer") as cluster:
        await cluster.parameter_server(Linear(4, 4), "writers", optimizer=SGD(lr=1.0))
        request = pb.PushRequest(table="default/writers", writer=4711, sequence=1, data=b"1234")
        await world.unary(SHARD + "Push", request.SerializeToString())


async def a_resume_file_that_is_none(world: World) -> None:
    load_model(world.certificates / "trainer" / "cert.pem")


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


TABLE: list[tuple[Callable[[World], Awaitable[None]], type[PsfError], str]] = [
    (unknown_service, NotRegistered, r"no service 'parameter-serv'.*did you mean parameter-server\?"),
    (unknown_method, NotRegistered, "nothing serves .*services: .*ParameterServerService"),
    (port_in_use, AddressInUse, "taken by another process: choose another port"),
    (wrong_certificate, PermissionDenied, "TLS refused the connection.*CERTIFICATE_VERIFY_FAILED"),
    (certificate_of_another_role, PermissionDenied, "role 'trainer'.* needs 'coordinator'"),
    (service_of_another_role, PermissionDenied, "TLS refused the connection.*certificate"),
    (claims_another_role, PermissionDenied, "you say that you are 'coordinator'.*of role 'trainer'"),
    (ten_gigabytes_in_a_header, WireError, "a field of 10737418240 bytes where 5 are left"),
    (ten_gigabytes_on_the_stream, WireError, "not a batch of frames"),
    (random_bytes_as_a_message, WireError, "a number that does not end"),
    (random_bytes_on_the_stream, WireError, "not a batch of frames"),
    (
        a_shape_that_does_not_match,
        ModelMismatch,
        r"parameter 'weight' has shape \(4, 5\), registered is \(4, 4\)",
    ),
    (a_push_before_a_register, UnknownTable, r"no table 'default/nobody'.*cluster\.parameter_server"),
    (a_push_of_an_unknown_writer, NotRegistered, "writer 4711 is not registered.*register first"),
    (a_resume_file_that_is_none, CheckpointError, "no model file"),
]


@pytest.mark.parametrize(("action", "error", "words"), TABLE, ids=[row[0].__name__ for row in TABLE])
async def test_bad_input(
    world: World, action: Callable[[World], Awaitable[None]], error: type[PsfError], words: str
) -> None:
    with pytest.raises(error, match=words):
        await action(world)
    await lives(world)


@pytest.mark.parametrize("target", ["coordinator", "shard"])
@pytest.mark.parametrize(
    "junk", [b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), struct.pack(">I", 10 << 20) * 100, b""]
)
async def test_random_bytes_on_the_port(world: World, target: str, junk: bytes) -> None:
    host, port = getattr(world, target).rsplit(":", 1)
    for _ in range(5):
        with socket.create_connection((host, int(port)), timeout=5) as stranger:
            stranger.sendall(junk)
    await lives(world)


async def lives(world: World) -> None:
    """Both services answer a typed call."""
    async with connect(world.coordinator, tls=world.certificates / "trainer") as cluster:
        shard = cluster.members(role="parameter-server")[0]
        peer = await cluster.agent.connect(
            shard.addresses, name=shard.name, role=shard.role, deadline=Deadline.after(10)
        )
        await peer.call(
            SHARD + "ListTables", pb.ListTablesRequest(), pb.ListTablesReply, deadline=Deadline.after(10)
        )
