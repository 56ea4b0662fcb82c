"""mTLS and tokens over real connections: who is refused, and what the refused one is told."""

from __future__ import annotations

import asyncio
import stat

import grpc
import pytest

from psframework.errors import ConfigurationError, PeerLost, PermissionDenied
from psframework.rpc.security import certificates
from psframework.rpc.security import credentials as security
from psframework.rpc.security.credentials import Security
from psframework.rpc.status import abort, from_rpc_error


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """TLS folders by name: a server, clients of two roles, and one of another authority."""
    root = tmp_path_factory.mktemp("certs")
    certificates.init(root)
    certificates.init(root / "foreign")
    return {
        "server": certificates.issue(root, "parameter-server", "PS:0", ["localhost", "127.0.0.1"]),
        "worker": certificates.issue(root, "worker", "w0"),
        "trainer": certificates.issue(root, "trainer"),
        "foreign": certificates.issue(root / "foreign", "worker", "w0"),
    }


async def start(server_security: Security):
    async def who(request, context):
        try:
            server_security.check_token(context.invocation_metadata())
            holder = security.identity(context)
            if holder:
                security.authorize(holder, {"worker"}, "Who")
        except PermissionDenied as error:
            await abort(context, error)
        return str(holder).encode()

    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler("t.T", {"Who": grpc.unary_unary_rpc_method_handler(who)})
    server.add_generic_rpc_handlers((handler,))
    credentials = server_security.server_credentials()
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    return server, f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
async def mtls(folders):
    server, address = await start(Security.from_files(folders["server"]))
    yield address
    await server.stop(0)


async def ask(client: Security, address: str, **server) -> str:
    """Calls Who and returns the answer, or raises as our clients do."""
    async with client.channel(address, **server) as channel:
        try:
            return (await channel.unary_unary("/t.T/Who")(b"", timeout=10)).decode()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer="PS:0", hint=client.hint) from error


SERVER = {"role": "parameter-server", "name": "PS:0"}


async def test_both_sides_know_each_other(folders, mtls):
    client = Security.from_files(folders["worker"])
    assert await ask(client, mtls, **SERVER) == "worker/w0"
    assert await ask(client, mtls, role="parameter-server") == "worker/w0"
    assert await ask(client, mtls) == "worker/w0"  # by host name, as stock clients do


async def test_a_synchronous_channel(folders, mtls):
    client = Security.from_files(folders["worker"])

    def call() -> bytes:
        with client.sync_channel(mtls, **SERVER) as channel:
            return channel.unary_unary("/t.T/Who")(b"", timeout=10)

    assert await asyncio.to_thread(call) == b"worker/w0"


async def test_a_certificate_of_another_role_is_refused_naming_both(folders, mtls):
    with pytest.raises(PermissionDenied, match=r"'trainer'.*'worker'"):
        await ask(Security.from_files(folders["trainer"]), mtls, **SERVER)


@pytest.mark.parametrize("server", [{"role": "coordinator"}, {"role": "parameter-server", "name": "ps:0"}])
async def test_a_server_of_another_role_or_name_is_refused(folders, mtls, server):
    with pytest.raises(PermissionDenied, match="certificate"):
        await ask(Security.from_files(folders["worker"]), mtls, **server)


async def test_a_server_of_another_authority_is_refused(folders, mtls):
    with pytest.raises(PermissionDenied, match="psf certs show"):
        await ask(Security.from_files(folders["foreign"]), mtls, **SERVER)


async def test_a_client_of_another_authority_is_told_to_look_at_its_certificate(folders, mtls, tmp_path):
    mixed = tmp_path / "mixed"  # trusts the server, but shows a certificate that the server can't check
    mixed.mkdir()
    for name in ("cert.pem", "key.pem"):
        (mixed / name).write_bytes((folders["foreign"] / name).read_bytes())
    both = (folders["server"] / "ca.pem").read_bytes() + (folders["foreign"] / "ca.pem").read_bytes()
    (mixed / "ca.pem").write_bytes(both)
    with pytest.raises(PeerLost, match="certificate") as caught:
        await ask(Security.from_files(mixed), mtls, **SERVER)
    assert (
        caught.value.reason == "refused" and not caught.value.may_have_run and str(mixed) in str(caught.value)
    )


async def test_plaintext_to_a_tls_server_and_back(folders, mtls):
    with pytest.raises(PeerLost):
        await ask(Security.plaintext(), mtls)
    server, address = await start(Security.plaintext())
    with pytest.raises(PermissionDenied, match="WRONG_VERSION_NUMBER"):
        await ask(Security.from_files(folders["worker"]), address, **SERVER)
    await server.stop(0)


@pytest.mark.parametrize("tls", [False, True])
async def test_tokens(folders, tls):
    def make(token, who):
        return Security.from_files(folders[who], token) if tls else Security.plaintext(token)

    server, address = await start(make("secret", "server"))
    assert await ask(make("secret", "worker"), address, **SERVER) == ("worker/w0" if tls else "None")
    with pytest.raises(PermissionDenied, match="asks for a token"):
        await ask(make(None, "worker"), address, **SERVER)
    with pytest.raises(PermissionDenied, match="not this cluster's"):
        await ask(make("Secret", "worker"), address, **SERVER)
    await server.stop(0)
    assert "secret" not in repr(make("secret", "server"))


async def test_a_server_takes_up_renewed_files(folders, tmp_path):
    certificates.init(tmp_path)
    served = certificates.issue(tmp_path, "parameter-server", "PS:0")
    server, address = await start(Security.from_files(served))
    certificates.init(tmp_path, overwrite=True)  # another authority altogether
    certificates.issue(tmp_path, "parameter-server", "PS:0")
    client = Security.from_files(certificates.issue(tmp_path, "worker"))
    assert await ask(client, address, **SERVER) == "worker/*"
    await server.stop(0)


def test_token_files(tmp_path):
    path = tmp_path / "token"
    token = security.write_token(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and security.read_token(path) == token
    assert Security.from_settings(token_file=path).token == token
    with pytest.raises(FileExistsError):
        security.write_token(path)
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        security.read_token(path)
    path.write_text("\n")
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="empty"):
        security.read_token(path)
    with pytest.raises(ConfigurationError, match="can't be read"):
        security.read_token(tmp_path / "none")


def test_settings(folders):
    assert Security.from_settings() == Security.plaintext()
    assert Security.from_settings(tls_dir=folders["worker"], token="t").tls.identity.role == "worker"
    with pytest.raises(ConfigurationError, match="both"):
        Security.from_settings(token="t", token_file="f")
    for bad in ("two words", "line\n", "é"):
        with pytest.raises(ConfigurationError, match="ASCII"):
            Security.plaintext(bad)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "[::]", "example.org", "127.example.org"])
def test_plaintext_beyond_loopback_needs_a_flag(folders, host):
    with pytest.raises(ConfigurationError, match="--tls-dir"):
        Security.plaintext("token").check_bind(host)
    Security.plaintext().check_bind(host, plaintext_ok=True)
    Security.from_files(folders["server"]).check_bind(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "[::1]", "::1"])
def test_plaintext_on_loopback_is_fine(host):
    Security.plaintext().check_bind(host)
