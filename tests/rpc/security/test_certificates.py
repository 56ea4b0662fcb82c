"""The development authority: files, modes, contents."""

from __future__ import annotations

import stat

import pytest

from psframework.errors import ConfigurationError
from psframework.rpc.security import certificates
from psframework.rpc.security.identity import Identity


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ca")
    certificates.init(folder, cluster="lab")
    return folder


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_are_readable_by_their_owner_only(authority, tmp_path):
    folder = certificates.issue(authority, "worker", "w0", out=tmp_path / "w0")
    assert mode(authority / "ca.key") == mode(folder / "key.pem") == 0o600
    assert mode(folder / "cert.pem") == mode(folder / "ca.pem") == 0o644
    assert sorted(path.name for path in folder.iterdir()) == ["ca.pem", "cert.pem", "key.pem"]


def test_describe_tells_role_name_hosts_and_dates(authority):
    folder = certificates.issue(
        authority, "parameter-server", "ps-0", ["shard.example", "127.0.0.1", "::1"], days=9
    )
    assert folder == authority / "parameter-server-ps-0"
    info = certificates.describe(folder / "cert.pem")
    assert info.identity == Identity("parameter-server", "ps-0", "lab")
    assert info.hosts == (
        "parameter-server.psf.internal",
        "ps-0.parameter-server.psf.internal",
        "shard.example",
        "127.0.0.1",
        "::1",
    )
    assert 9 <= (info.not_after - info.not_before).total_seconds() / 86400 < 10 and not info.is_authority
    root = certificates.describe(folder / "ca.pem")
    assert root.is_authority and root.identity is None and root.fingerprint != info.fingerprint


def test_a_certificate_of_a_role_serves_every_name_of_it(authority):
    folder = certificates.issue(authority, "worker")
    assert folder == authority / "worker"
    info = certificates.describe(folder / "cert.pem")
    assert info.identity == Identity("worker", "*", "lab") and "*.worker.psf.internal" in info.hosts


def test_an_authority_is_not_replaced_by_accident(tmp_path):
    certificates.init(tmp_path)
    before = (tmp_path / "ca.key").read_bytes()
    with pytest.raises(ConfigurationError, match="already is an authority"):
        certificates.init(tmp_path)
    assert (tmp_path / "ca.key").read_bytes() == before
    certificates.init(tmp_path, overwrite=True)
    assert (tmp_path / "ca.key").read_bytes() != before


def test_bad_input_names_the_file_and_the_fix(authority, tmp_path):
    with pytest.raises(ConfigurationError, match=r"ca\.pem is missing.*psf certs init"):
        certificates.issue(tmp_path, "worker")
    with pytest.raises(ConfigurationError, match="role 'Bad Role'"):
        certificates.issue(authority, "Bad Role")
    for host in ("host:443", "https://x", ""):
        with pytest.raises(ConfigurationError, match="host name"):
            certificates.issue(authority, "worker", hosts=[host])
    (tmp_path / "x.pem").write_text("no certificate")
    with pytest.raises(ConfigurationError, match=r"x\.pem holds no certificate"):
        certificates.describe(tmp_path / "x.pem")
    with pytest.raises(ConfigurationError, match="can't be read"):
        certificates.describe(tmp_path)


def test_an_authority_with_anothers_key_is_refused(authority, tmp_path):
    certificates.init(tmp_path)
    (tmp_path / "ca.key").write_bytes((authority / "ca.key").read_bytes())
    with pytest.raises(ConfigurationError, match="is not the key"):
        certificates.issue(tmp_path, "worker")
    (tmp_path / "ca.key").write_text("nothing")
    with pytest.raises(ConfigurationError, match="holds no private key"):
        certificates.issue(tmp_path, "worker")
