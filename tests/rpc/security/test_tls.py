"""The checks of a TLS folder, and taking up renewed files."""

from __future__ import annotations

import os
import ssl

import pytest

from psframework.errors import ConfigurationError
from psframework.rpc.security import certificates
from psframework.rpc.security.identity import Identity
from psframework.rpc.security.tls import TlsFiles


@pytest.fixture
def folder(tmp_path):
    certificates.init(tmp_path)
    return certificates.issue(tmp_path, "worker", "w0")


def problem(folder) -> str:
    with pytest.raises(ConfigurationError) as caught:
        TlsFiles(folder).load()
    return str(caught.value)


def test_a_good_folder(folder):
    files = TlsFiles(folder)
    assert files.identity == Identity("worker", "w0") and files.load() is files.load()
    assert "PRIVATE" not in repr(files.load())


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem"])
def test_missing_and_damaged_files_are_named(folder, name):
    (folder / name).write_text("-----BEGIN NONSENSE-----")
    assert str(folder / name) in problem(folder) and "PEM" in problem(folder)
    (folder / name).unlink()
    assert f"{folder / name} is missing" in problem(folder) and "psf certs" in problem(folder)


def test_no_folder(tmp_path):
    assert "is not there" in problem(tmp_path / "none")


def test_a_key_of_another_certificate(folder, tmp_path):
    other = certificates.issue(tmp_path, "worker", "w1")
    (folder / "key.pem").write_bytes((other / "key.pem").read_bytes())
    assert "is not the key of" in problem(folder)


def test_another_authority(folder, tmp_path):
    certificates.init(tmp_path / "second")
    (folder / "ca.pem").write_bytes((tmp_path / "second" / "ca.pem").read_bytes())
    assert "was not signed by" in problem(folder)


def test_an_expired_certificate(folder, tmp_path):
    expired = certificates.issue(tmp_path, "worker", "old", days=0)
    assert "expired on" in problem(expired)


def test_an_authority_in_place_of_a_service_certificate(folder, tmp_path):
    (folder / "cert.pem").write_bytes((tmp_path / "ca.pem").read_bytes())
    (folder / "key.pem").write_bytes((tmp_path / "ca.key").read_bytes())
    assert "names no role" in problem(folder)


def test_both_authorities_are_trusted_while_one_replaces_the_other(folder, tmp_path):
    certificates.init(tmp_path / "second")
    both = (tmp_path / "second" / "ca.pem").read_bytes() + (folder / "ca.pem").read_bytes()
    (folder / "ca.pem").write_bytes(both)
    assert TlsFiles(folder).load().authority == both


def test_renewed_files_are_taken_up_and_half_renewed_ones_are_not(folder, tmp_path):
    files = TlsFiles(folder)
    first = files.load()
    assert files._renewed() is None
    old_key = (folder / "key.pem").read_bytes()
    certificates.issue(tmp_path, "worker", "w0")
    new_key = (folder / "key.pem").read_bytes()
    (folder / "key.pem").write_bytes(old_key)
    assert files._renewed() is None and files._loaded[1] is first
    (folder / "key.pem").write_bytes(new_key)
    assert files._renewed() is not None and files.load().certificate != first.certificate


def test_files_of_another_size_are_renewed_ones_whatever_their_time(folder, tmp_path):
    """Clocks of file systems are coarse: what is written twice within a tick has one time."""
    files = TlsFiles(folder)
    first, context = files.load(), files.socket_context(server_side=True)
    other = certificates.issue(tmp_path, "worker", "one-with-a-longer-name")
    for name in ("cert.pem", "key.pem"):
        before = (folder / name).stat()
        (folder / name).write_bytes((other / name).read_bytes())
        os.utime(folder / name, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert files.load().identity.name == "one-with-a-longer-name" != first.identity.name
    assert files.socket_context(server_side=True) is not context


def test_sockets_take_up_renewed_files_too(folder, tmp_path):
    files = TlsFiles(folder)
    first = files.socket_context(server_side=True)
    assert files.socket_context(server_side=True) is first is not files.socket_context(server_side=False)
    assert first.verify_mode is ssl.CERT_REQUIRED and not first.check_hostname
    assert files.socket_context(server_side=False).check_hostname
    other = certificates.issue(tmp_path, "worker", "w1")
    for name in ("cert.pem", "key.pem"):
        (folder / name).write_bytes((other / name).read_bytes())
    assert files.socket_context(server_side=True) is not first
    (folder / "key.pem").unlink()
    with pytest.raises(ConfigurationError, match="missing"):
        files.socket_context(server_side=True)
