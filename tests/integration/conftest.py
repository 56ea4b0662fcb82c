"""A stage of real processes: two small clusters, one with certificates, and ways to disturb them."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from safetensors.numpy import save

import psframework as psf
from psframework import nn, optim
from psframework.cli.app import app
from psframework.cluster.process import ServiceProcess, child_environment
from psframework.errors import PsfError
from psframework.membership.client import JoinRequest, Membership
from psframework.parameter_server.messages import keeper_method, shard_method
from psframework.rpc.security import certificates
from psframework.rpc.security.credentials import Security
from psframework.rpc.session import frames
from psframework.rpc.session.frames import FrameBatch, Hello, Identity, LinkState
from psframework.rpc.session.handshake import hello_message, read_welcome
from psframework.rpc.status import detail_to_error, from_rpc_error

SECONDS = 10.0
TOKEN = "a-token"


class Net(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(np.zeros((2, width), np.float32))


@dataclass
class Side:
    """A coordinator, a shard, and a trainer that goes on working.

    Attributes:
        token: of the cluster; None where certificates decide.
        tls: folder of certificates; None in plaintext.
    """

    coordinator: ServiceProcess
    shard: ServiceProcess
    security: Security
    token: str | None
    tls: Path | None
    cluster: psf.Cluster
    model: Net
    ps: psf.ParameterServer

    async def works(self) -> None:
        """Asserts health on new connections, and a step and a barrier on the old ones."""
        before = self.model.weight.data.copy()
        self.model.weight.grad = np.ones_like(before)
        await self.ps.push_pull(timeout=SECONDS)
        np.testing.assert_array_equal(self.model.weight.data, before - 1)
        await self.cluster.barrier("alive", 1, timeout=SECONDS)
        for service in (self.coordinator, self.shard):
            async with self.channel(service) as channel:
                request = health_pb2.HealthCheckRequest()
                reply = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=SECONDS)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING

    def resident(self) -> list[int]:
        """Resident bytes of both services."""
        assert self.coordinator.alive
        assert self.shard.alive
        return [psutil.Process(p.pid).memory_info().rss for p in (self.coordinator, self.shard)]

    # Disturbances

    def channel(self, service: ServiceProcess) -> grpc.aio.Channel:
        """A channel as a foreign client opens it, with a trainer's papers."""
        return self.security.channel(service.address, role=service.name if self.tls else "")

    async def to_shard(self, method: str, request: bytes | Message) -> None:
        """Sends one message, or any bytes, to a method of the shard."""
        await self._send(self.shard, shard_method(method), request)

    async def to_keeper(self, method: str, request: bytes | Message) -> None:
        """The same, to the keeper of models in the coordinator's process."""
        await self._send(self.coordinator, keeper_method(method), request)

    async def _send(self, service: ServiceProcess, path: str, request: bytes | Message) -> None:
        data = request if isinstance(request, bytes) else request.SerializeToString()
        async with self.channel(service) as channel:
            await answered(channel.unary_unary(path)(data, timeout=SECONDS))

    async def join(
        self,
        tls: str | None = None,
        *,
        token: str | None = None,
        role: str = "trainer",
        at: str = "coordinator",
    ) -> None:
        """A new member with these papers; `tls` is beside our folder of certificates."""
        folder = None if tls is None or self.tls is None else self.tls.parent / tls
        security = Security.from_settings(tls_dir=folder, token=token)
        address = getattr(self, at).address
        async with Membership.join([address], JoinRequest(role), security, timeout=15.0):
            pass

    async def open(self, model: nn.Module, *, policy: Any = None, **options: Any) -> None:
        """A second trainer with this model."""
        if not options.get("reader"):
            options.setdefault("optimizer", optim.SGD(lr=1.0))
            policy = policy or psf.ASP()
        trainer = self.tls / "trainer" if self.tls else None
        async with psf.connect(self.coordinator.address, token=self.token, tls=trainer) as cluster:
            await cluster.parameter_server(model, consistency=policy, **options)

    async def on_port(self, which: str, data: bytes) -> None:
        """Bytes on a bare port; EOFError once the server has closed the connection."""
        host, _, port = getattr(self, which).address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            while await reader.read(4096):
                pass
        finally:
            writer.transport.abort()
        raise EOFError("the server closed the connection")

    async def on_stream(self, *messages: bytes, name: str = "Connect") -> None:
        """Messages on a stream of their own to the shard's CallService."""
        async with self.channel(self.shard) as channel:
            call = channel.stream_stream(f"/psframework.proto.v1.CallService/{name}")(timeout=SECONDS)
            for message in messages:
                await answered(call.write(message))
            while (reply := await answered(call.read())) is not grpc.aio.EOF:
                _raise_what_it_says(reply)


async def answered(call: Awaitable[Any]) -> Any:
    """Awaits a call of a stock stub; raises what it ended with as one of our errors."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from None


def _raise_what_it_says(reply: bytes) -> None:
    batch = FrameBatch.FromString(reply)
    if batch.HasField("welcome"):
        read_welcome(reply)
    for frame in batch.frames:
        if frame.HasField("error"):
            raise detail_to_error(frame.error)


@dataclass
class Stage:
    """A plaintext cluster, one with certificates, and the folder of certificates and files."""

    plain: Side
    secure: Side
    folder: Path

    def hello(self, role: str = "trainer") -> bytes:
        """The first message of a call stream, from a member that nobody knows."""
        state = LinkState(window=1 << 20, lanes=[frames.INLINE, frames.STRIPED])
        sender = Identity(name="a", role=role, job="default", incarnation=1 << 40)
        session = os.urandom(16)
        return hello_message(
            Hello(protocol=frames.PROTOCOL, session=session, connection=1, sender=sender, state=state)
        )

    async def psf(self, *line: str, real: bool = True) -> None:
        """A command line here, and in a process of its own: that ends with the same words, no traceback."""
        arguments = [str(self.folder / part[1:]) if part.startswith("@") else part for part in line]
        with pytest.raises(PsfError) as caught:
            app(arguments, standalone_mode=False)
        if real:
            await self.complains(arguments, str(caught.value))
        raise caught.value

    async def complains(self, line: list[str], words: str) -> None:
        """Asserts that the command, as a process, ends with status 2 and these last words."""
        command = [sys.executable, "-m", "psframework.cli.app", *line]
        environment = child_environment()
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=30, env=environment
        )
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.splitlines()[-1] == f"error: {words}"


@asynccontextmanager
async def _side(common: list[str], tls: Path | None, token: str | None) -> AsyncIterator[Side]:
    names = ("coordinator", "parameter-server")
    flags = [[*common, "--tls-dir", str(tls / name)] if tls else common for name in names]
    coordinator = ServiceProcess(names[0], "services.coordinator", flags[0])
    async with AsyncExitStack() as stack:
        coordinator.start()
        stack.push_async_callback(coordinator.stop, SECONDS)
        address = await coordinator.wait_serving(30)
        arguments = [*flags[1], "--coordinator", address, "--name", names[1]]
        shard = ServiceProcess(names[1], "services.parameter_server", arguments)
        shard.start()
        stack.push_async_callback(shard.stop, SECONDS)
        await shard.wait_serving(30, joined=True)
        trainer = tls / "trainer" if tls else None
        cluster = await stack.enter_async_context(psf.connect(address, tls=trainer, token=token, name="good"))
        model = Net()
        ps = await cluster.parameter_server(model, optimizer=optim.SGD(lr=1.0), consistency=psf.ASP())
        security = Security.from_settings(tls_dir=trainer, token=token)
        yield Side(coordinator, shard, security, token, tls, cluster, model, ps)


def _papers(folder: Path) -> None:
    """Two authorities, a certificate of the other one for who trusts both, a token, and files to resume."""
    for authority in ("certs", "other"):
        certificates.init(folder / authority)
        for role in ("coordinator", "parameter-server", "trainer"):
            certificates.issue(folder / authority, role)
    mixed = certificates.issue(folder / "other", "trainer", out=folder / "mixed")
    both = [(folder / authority / "ca.pem").read_bytes() for authority in ("certs", "other")]
    (mixed / "ca.pem").write_bytes(b"".join(both))
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    (folder / "notes.txt").write_text("these are notes\n" * 100)
    tensors = save({"weight": np.zeros((2, 3), np.float32)})
    (folder / "tensors.safetensors").write_bytes(tensors)
    (folder / "half.safetensors").write_bytes(tensors[: len(tensors) // 2])


@pytest.fixture(scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """Both clusters, warm."""
    folder = tmp_path_factory.mktemp("stage")
    _papers(folder)
    async with AsyncExitStack() as stack:
        starts = (
            _side(["--token-file", str(folder / "token")], None, TOKEN),
            _side([], folder / "certs", None),
        )
        plain, secure = await asyncio.gather(*(stack.enter_async_context(start) for start in starts))
        for side in (plain, secure):
            await side.works()
        yield Stage(plain, secure, folder)
