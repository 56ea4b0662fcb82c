"""Who gets into a worker with certificates: real processes, real TLS, and words that say what was wrong."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
import remote_functions as functions
from google.protobuf.message import Message

import psframework as psf
from psframework import nn
from psframework.cluster.process import ServiceProcess
from psframework.cluster.script import import_path
from psframework.errors import ConfigurationError, PeerLost, PermissionDenied, PsfError
from psframework.proto.v1.remote_pb2 import DescribeReply, DescribeRequest, InvokeRequest
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.security import certificates
from psframework.rpc.security.credentials import Security
from psframework.rpc.security.identity import server_name
from psframework.rpc.session.agent import Agent
from psframework.rpc.status import from_rpc_error
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey

SECONDS = 10.0
BRIEF = 6 / 86_400  # days
DESCRIBE = "/psframework.proto.v1.RemoteService/Describe"
INVOKE = "/psframework.proto.v1.RemoteService/Invoke"


@dataclass
class Site:
    """A coordinator, a worker that serves trainers only, and the folder of all certificates."""

    coordinator: ServiceProcess
    worker: ServiceProcess
    folder: Path

    def refusals(self) -> list[str]:
        """The audit lines of the worker."""
        return [line for line in self.worker.output if "psframework.audit" in line]

    async def dial(self, tls: Path | None, role: str = "trainer", name: str = "stranger") -> None:
        """Opens a session with the worker, past the coordinator, with these papers."""
        security = Security.from_settings(tls_dir=tls)
        async with Agent(PeerInfo(name, role, "default", 1 << 40), security=security) as agent:
            target = {"name": "worker-0", "role": "worker", "deadline": Deadline.after(1.5)}
            peer = await agent.connect([self.worker.address], **target)
            await peer.call(DESCRIBE, DescribeRequest(), DescribeReply, deadline=Deadline.after(SECONDS))

    async def stub(self, channel: grpc.aio.Channel, path: str, request: Message) -> bytes:
        """One call of a stock stub; its failure as one of our errors."""
        async with channel:
            try:
                reply: bytes = await channel.unary_unary(path)(request.SerializeToString(), timeout=SECONDS)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, peer="worker-0", hint="look at the certificates") from None  # type: ignore[arg-type]
        return reply


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    folder = tmp_path_factory.mktemp("certificates")
    certificates.init(folder / "certs")
    for role in ("coordinator", "worker", "trainer", "guest"):
        certificates.issue(folder / "certs", role)
    certificates.issue(folder / "certs", "trainer", out=folder / "expired", days=0)
    certificates.init(folder / "other")
    certificates.issue(folder / "other", "trainer")
    mixed = certificates.issue(folder / "other", "trainer", out=folder / "mixed")  # trusts us, is not ours
    both = [(folder / authority / "ca.pem").read_bytes() for authority in ("certs", "other")]
    (mixed / "ca.pem").write_bytes(b"".join(both))
    async with AsyncExitStack() as stack:
        flags = ["--tls-dir", str(folder / "certs" / "coordinator"), "--state", str(folder / "state.sqlite")]
        coordinator = ServiceProcess("coordinator", "services.coordinator", flags)
        coordinator.start()
        stack.push_async_callback(coordinator.stop, 5)
        address = await coordinator.wait_serving(30)
        flags = [
            "--coordinator",
            address,
            "--tls-dir",
            str(folder / "certs" / "worker"),
            "--name",
            "worker-0",
        ]
        flags += ["--import", "remote_functions", "--allow", "trainer:remote_functions.*"]
        worker = ServiceProcess(
            "worker-0", "services.worker", flags, environment={"PYTHONPATH": import_path()}
        )
        worker.start()
        stack.push_async_callback(worker.stop, 5)
        await worker.wait_serving(30, joined=True)
        yield Site(coordinator, worker, folder)


@pytest.fixture(autouse=True)
async def good(site: Site) -> AsyncIterator[None]:
    """After each attempt, a good trainer is served as before."""
    yield
    async with psf.connect(site.coordinator.address, tls=site.folder / "certs" / "trainer") as cluster:
        assert await cluster.rpc_async("worker-0", functions.add, (1, 2), timeout=SECONDS) == 3


async def test_the_certificate_says_who_calls(site: Site) -> None:
    async with psf.connect(site.coordinator.address, tls=site.folder / "certs" / "trainer", name="me") as me:
        assert await me.rpc_async("worker-0", functions.where) == ("async", "worker-0", "me")


async def test_another_role_is_refused_by_name_and_the_audit_log_says_so(site: Site) -> None:
    before = len(site.refusals())
    async with psf.connect(site.coordinator.address, tls=site.folder / "certs" / "guest", name="g") as guest:
        with pytest.raises(PermissionDenied, match=r"g \(guest\) may not call remote_functions\.add here"):
            await guest.rpc_async("worker-0", functions.add, (1, 2))
        with pytest.raises(
            PermissionDenied, match=r"g has the role 'guest'; remote_functions\.for_admins needs"
        ):
            await guest.rpc_async("worker-0", functions.for_admins)
    lines = site.refusals()[before:]
    assert len(lines) == 2
    for line, what in zip(lines, ("add", "for_admins")):
        for words in ("event=refused", f"what=remote_functions.{what}", "peer=g", "role=guest"):
            assert words in line
        assert "certificate=psf://cluster/guest/%2A" in line
        assert "reason=" in line


async def test_rules_hold_for_modules_among_the_arguments(site: Site) -> None:
    before = len(site.refusals())
    async with psf.connect(site.coordinator.address, tls=site.folder / "certs" / "trainer", name="me") as me:
        with pytest.raises(TypeError, match="Net"):  # it was made, and can't be added to anything
            await me.rpc_async("worker-0", functions.add, (functions.Net(None, 3), 1))
        with pytest.raises(PermissionDenied, match=r"may not call psframework\.nn\.Linear here"):
            await me.rpc_async("worker-0", functions.add, ([nn.Linear(2, 3)], 1))
    (line,) = site.refusals()[before:]
    for words in ("event=refused", "what=psframework.nn.Linear", "peer=me", "role=trainer"):
        assert words in line


async def test_another_role_by_a_stock_stub(site: Site) -> None:
    values = arguments.encode_call((1, 2), None, Journey())
    request = InvokeRequest(function="remote_functions.add", arguments=values)
    for role, refused in (("trainer", False), ("guest", True)):
        channel = Security.from_files(site.folder / "certs" / role).channel(
            site.worker.address, role="worker"
        )
        expected = (
            pytest.raises(PermissionDenied, match="may not call") if refused else contextlib.nullcontext()
        )
        with expected:
            await site.stub(channel, INVOKE, request)


async def test_a_role_that_is_not_the_certificates(site: Site) -> None:
    with pytest.raises(
        PermissionDenied, match=r"you say that you are 'worker', but your certificate .*'guest'"
    ):
        await site.dial(site.folder / "certs" / "guest", role="worker")
    line = site.refusals()[-1]
    for words in (
        'what="a connection"',
        "peer=stranger",
        "role=worker",
        "certificate=psf://cluster/guest/%2A",
    ):
        assert words in line


@pytest.mark.parametrize(
    ("papers", "words"),
    [
        (None, "may expect TLS: give the folder of your certificates"),
        ("mixed", "refused the other's certificate: look at .*mixed with `psf certs show`"),
        ("other/trainer", "TLS refused the connection .*CERTIFICATE_VERIFY_FAILED"),
    ],
    ids=["no certificate", "of another authority", "another authority's"],
)
async def test_other_papers(site: Site, papers: str | None, words: str) -> None:
    folder = site.folder / papers if papers else None
    with pytest.raises((PermissionDenied, PeerLost), match=words):
        await site.dial(folder)
    with pytest.raises(PsfError, match=words):
        async with psf.connect(site.coordinator.address, tls=folder, timeout=1):
            pass


async def test_an_expired_certificate(site: Site) -> None:
    """We do not even begin with one; a program of a stranger does, and the worker closes the connection."""
    expired = site.folder / "expired"
    with pytest.raises(ConfigurationError, match=r"expired/cert\.pem expired on .*: issue it anew"):
        async with psf.connect(site.coordinator.address, tls=expired):
            pass
    pems = [(expired / name).read_bytes() for name in ("ca.pem", "key.pem", "cert.pem")]
    target = (("grpc.ssl_target_name_override", server_name("worker")),)
    channel = grpc.aio.secure_channel(
        site.worker.address, grpc.ssl_channel_credentials(*pems), options=target
    )
    with pytest.raises((PeerLost, PermissionDenied), match="worker-0: connection lost"):
        await site.stub(channel, DESCRIBE, DescribeRequest())


async def test_who_is_no_worker_is_not_believed_to_be_one(site: Site) -> None:
    """A trainer that advertises itself under the worker's role and address."""
    async with Agent(
        PeerInfo("a", "trainer", "default", 1 << 41),
        security=Security.from_files(site.folder / "certs" / "trainer"),
    ) as agent:
        target = {"name": "worker-0", "role": "worker", "deadline": Deadline.after(1.5)}
        with pytest.raises(PermissionDenied, match=r"TLS refused the connection .*certificate"):
            await agent.connect([site.coordinator.address], **target)


async def test_a_certificate_that_expires_while_the_process_runs(site: Site) -> None:
    """Sessions that are open go on; a new one is refused at once, in words, and made with a renewed one."""
    folder = certificates.issue(site.folder / "certs", "trainer", out=site.folder / "brief", days=BRIEF)
    until = certificates.describe(folder / "cert.pem").not_after
    async with psf.connect(site.coordinator.address, tls=folder, name="brief") as cluster:
        await asyncio.sleep((until - datetime.now(UTC)).total_seconds() + 0.1)
        async with asyncio.timeout(5):
            with pytest.raises(PermissionDenied, match=r"brief/cert\.pem, expired on .*: issue it anew"):
                await cluster.rpc_async("worker-0", functions.add, (1, 2), timeout=0)
        certificates.issue(site.folder / "certs", "trainer", out=folder)
        assert await cluster.rpc_async("worker-0", functions.add, (1, 2), timeout=SECONDS) == 3
