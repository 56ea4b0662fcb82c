"""`psf.connect` against real processes: who may join, as whom, and what it says when it can't."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from psframework.cluster.connect import client_role, client_security, connect
from psframework.cluster.current import current_cluster
from psframework.cluster.local import LocalCluster, local_cluster
from psframework.cluster.process import ServiceProcess
from psframework.cluster.settings import Settings
from psframework.errors import ArgumentError, ConfigurationError, NameTaken, PermissionDenied, PsfError
from psframework.rpc.deadline import Deadline
from psframework.rpc.security import certificates


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    async with local_cluster() as cluster:
        yield cluster


async def test_names_roles_and_jobs(local: LocalCluster) -> None:
    async with connect(local.address) as first, connect(local.address, name="me", job="mine") as second:
        assert (first.name, first.role, first.job) == ("trainer-0", "trainer", "default")
        assert (second.name, second.job) == ("me", "mine")
        await first.membership.wait_for(lambda view: view.find("me") is not None, Deadline.after(5))
        assert {member.name for member in first.members(role="trainer")} >= {"trainer-0", "me"}
        assert [member.name for member in second.members(job="mine")] == ["me"]
        assert "trainer-0" in repr(first)


async def test_address_and_name_from_the_environment(
    local: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSF_COORDINATOR", local.address)
    monkeypatch.setenv("PSF_NAME", "from-environment")
    async with connect() as cluster:
        assert cluster.name == "from-environment"


async def test_several_coordinators_the_first_of_them_dead(local: LocalCluster) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but nobody listens
        dead = f"127.0.0.1:{unused.getsockname()[1]}"
        async with connect([dead, local.address], token=local.token) as cluster:
            assert cluster.members()


async def test_the_same_name_twice(local: LocalCluster) -> None:
    async with connect(local.address, name="twin") as holder:
        with pytest.raises(NameTaken, match="twin"):
            async with connect(local.address, name="twin", timeout=2):
                pass
        await holder.barrier("undisturbed", 1)
    async with connect(local.address, name="twin"):
        pass


async def test_twenty_times_in_one_process(local: LocalCluster) -> None:
    for _ in range(20):
        async with connect(local.address, name="again"):
            pass


async def test_without_the_token(local: LocalCluster) -> None:
    began = time.monotonic()
    with pytest.raises(PermissionDenied, match="token"):
        async with connect(local.address, token="wrong"):
            pass
    assert time.monotonic() - began < 5


async def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(PsfError, match=address):
            async with connect(address, timeout=1):
                pass
        assert time.monotonic() - began < 5


async def test_no_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PSF_COORDINATOR", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="PSF_COORDINATOR"):
        async with connect():
            pass


async def test_current_cluster_is_seen_by_tasks_and_gone_afterwards(local: LocalCluster) -> None:
    async def ask() -> object:
        return current_cluster()

    async with connect(local.address) as outer:
        assert await asyncio.create_task(ask()) is outer
        async with connect(local.address) as inner:
            assert current_cluster() is inner
        assert current_cluster() is outer
    with pytest.raises(ArgumentError, match=r"psf\.connect"):
        current_cluster()


async def test_an_error_in_the_body_comes_out_and_the_member_leaves(local: LocalCluster) -> None:
    with pytest.raises(ZeroDivisionError):
        async with connect(local.address, name="failing"):
            raise ZeroDivisionError
    async with connect(local.address) as cluster:
        assert cluster.membership.find("failing") is None


async def test_a_member_that_listens_is_reachable_at_what_it_advertises(local: LocalCluster) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with connect(local.address, name="listener", advertise=f"127.0.0.1:{port}") as listener:
        async with connect(local.address) as other:
            member = other.membership.find("listener")
            assert member is not None
            assert member.addresses == (f"127.0.0.1:{port}",)
            peer = await other.agent.connect(
                member.addresses, name="listener", role="trainer", deadline=Deadline.after(5)
            )
            assert peer.info.incarnation == listener.membership.member.incarnation


# With TLS


@pytest.fixture(scope="module")
async def secured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, Path]]:
    """A coordinator that asks for certificates; gives its address and the folder of all certificates."""
    folder = tmp_path_factory.mktemp("certificates")
    certificates.init(folder)
    for role, name in (("coordinator", "*"), ("trainer", "*"), ("trainer", "t-0"), ("parameter-server", "*")):
        certificates.issue(folder, role, name)
    arguments = ["--tls-dir", str(folder / "coordinator"), "--state", str(folder / "state.sqlite")]
    process = ServiceProcess("coordinator", "services.coordinator", arguments)
    process.start()
    yield await process.wait_serving(30), folder
    await process.stop(5)


async def test_the_role_is_the_certificates(secured: tuple[str, Path]) -> None:
    address, folder = secured
    async with connect(address, tls=folder / "trainer") as cluster:
        assert cluster.role == "trainer"
    async with connect(address, tls=folder / "trainer-t-0", name="t-0") as cluster:
        assert cluster.name == "t-0"


@pytest.mark.parametrize(
    ("tls", "name", "words"),
    [("trainer-t-0", "someone-else", "someone-else"), (None, None, "127")],
)
async def test_who_may_not_join(
    secured: tuple[str, Path], tls: str | None, name: str | None, words: str
) -> None:
    address, folder = secured
    with pytest.raises(PsfError, match=words):
        async with connect(address, tls=folder / tls if tls else None, name=name, timeout=2):
            pass


@pytest.mark.parametrize("role", ["coordinator", "parameter-server"])
async def test_a_client_is_no_service(secured: tuple[str, Path], role: str) -> None:
    address, folder = secured
    with pytest.raises(ConfigurationError, match="psf certs issue trainer"):
        async with connect(address, tls=folder / role):
            pass


async def test_a_server_with_a_certificate_of_another_role_is_not_believed(
    secured: tuple[str, Path], tmp_path: Path
) -> None:
    _, folder = secured
    arguments = ["--tls-dir", str(folder / "parameter-server"), "--state", str(tmp_path / "state.sqlite")]
    impostor = ServiceProcess("impostor", "services.coordinator", arguments)
    impostor.start()
    try:
        address = await impostor.wait_serving(30)
        with pytest.raises(PermissionDenied, match="certificate"):
            async with connect(address, tls=folder / "trainer", timeout=3):
                pass
    finally:
        await impostor.stop(5)


def test_what_a_client_shows(tmp_path: Path) -> None:
    assert client_role(Settings.load()) == "trainer"
    certificates.init(tmp_path)
    folder = certificates.issue(tmp_path, "worker")
    assert client_role(Settings.load(tls_dir=folder)) == "worker"
    assert client_security(Settings.load(tls_dir=folder)).tls is not None
    assert client_security(Settings.load(token="abc")).token == "abc"
    assert client_security(Settings.load(coordinator="127.0.0.1:1")).token is None


@pytest.mark.parametrize(
    "role", ["coordinator", "parameter-server", "allreduce", "pipeline-stage", "pipeline"]
)
async def test_a_service_certificate_is_not_for_trainers(tmp_path: Path, role: str) -> None:
    """Members find services by their role: a script that holds such a certificate would be taken for one."""
    certificates.init(tmp_path)
    folder = certificates.issue(tmp_path, role)
    with pytest.raises(ConfigurationError, match=rf"the certificate of a service \({role}\)"):
        async with connect("127.0.0.1:1", tls=folder):
            pass
