"""`psf certs` makes what services and clients need, and says what is wrong in one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from psframework.cli.certs import app
from psframework.errors import ConfigurationError
from psframework.rpc.security import certificates
from psframework.rpc.security.credentials import Security


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_an_authority_and_certificates_that_services_take(tmp_path: Path) -> None:
    run("init", "--dir", tmp_path)
    run("issue", "parameter-server", "--dir", tmp_path, "--name", "parameter-server-0", "--host", "localhost")
    folder = tmp_path / "parameter-server-parameter-server-0"
    assert sorted(path.name for path in folder.iterdir()) == ["ca.pem", "cert.pem", "key.pem"]
    assert (folder / "key.pem").stat().st_mode & 0o077 == 0
    assert Security.from_files(folder).server_credentials() is not None


def test_show_says_whose_it_is(tmp_path: Path) -> None:
    run("init", "--dir", tmp_path, "--cluster", "c1")
    run("issue", "trainer", "--dir", tmp_path, "--name", "t-0", "--host", "10.1.2.3")
    shown = json.loads(run("show", tmp_path / "trainer-t-0", "--json"))
    assert [(entry["role"], entry["name"]) for entry in shown] == [("trainer", "t-0"), (None, None)]
    assert "10.1.2.3" in shown[0]["hosts"]
    assert shown[0]["uri"] == "psf://c1/trainer/t-0"
    assert shown[0]["issuer"] == shown[1]["subject"] == "psframework development CA"
    assert 360 < shown[0]["days_left"] < 366 < shown[1]["days_left"]
    assert shown[1]["is_authority"]
    table = run("show", tmp_path / "trainer-t-0")
    for words in ("trainer/t-0", "psf://c1/trainer/t-0", "10.1.2.3", "(authority)", "days left"):
        assert words in table


def test_show_says_what_has_expired(tmp_path: Path) -> None:
    run("init", "--dir", tmp_path)
    certificates.issue(tmp_path, "worker", days=0)
    assert "expired" in run("show", tmp_path / "worker")
    (leaf, _) = json.loads(run("show", tmp_path / "worker", "--json"))
    assert leaf["role"] == "worker"
    assert leaf["days_left"] < 0


def test_init_does_not_overwrite(tmp_path: Path) -> None:
    run("init", "--dir", tmp_path)
    before = (tmp_path / "ca.key").read_bytes()
    with pytest.raises(ConfigurationError, match="--overwrite"):
        run("init", "--dir", tmp_path)
    run("init", "--dir", tmp_path, "--keep")
    assert (tmp_path / "ca.key").read_bytes() == before
    run("init", "--dir", tmp_path, "--overwrite")
    assert (tmp_path / "ca.key").read_bytes() != before


def test_keep_issues_again_only_when_it_must(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def issue(*more: object) -> bytes:
        run("issue", "trainer", "--dir", tmp_path, "--out", out, "--keep", *more)
        return (out / "cert.pem").read_bytes()

    run("init", "--dir", tmp_path)
    first = issue("--days", 20)
    second = issue()
    assert second != first, "it ends within a month"
    assert issue() == second
    third = issue("--name", "t-0")
    assert third != second, "it is of another name"
    (out / "key.pem").unlink()
    assert issue("--name", "t-0") != third, "its key is gone"
    run("init", "--dir", tmp_path, "--overwrite")
    fourth = issue("--name", "t-0")
    assert (out / "ca.pem").read_bytes() == (tmp_path / "ca.pem").read_bytes(), "it was of another authority"
    (out / "cert.pem").write_text("damaged")
    assert issue("--name", "t-0") not in (fourth, b"damaged")
    fifth = issue("--host", "far.example")
    assert issue("--host", "far.example") == issue() == fifth
    assert issue("--host", "far.example", "--host", "10.0.0.7") != fifth, "it lacks a host"


def test_keep_looks_where_it_would_write(tmp_path: Path) -> None:
    run("init", "--dir", tmp_path)
    for names, folder in (((), "trainer"), (("--name", "t-0"), "trainer-t-0")):
        run("issue", "trainer", "--dir", tmp_path, "--keep", *names)
        before = (tmp_path / folder / "cert.pem").read_bytes()
        run("issue", "trainer", "--dir", tmp_path, "--keep", *names)
        assert (tmp_path / folder / "cert.pem").read_bytes() == before


def test_several_at_once(tmp_path: Path) -> None:
    run("init", "--dir", tmp_path)
    holders = ("coordinator", "worker/worker-0", "worker/worker-1")
    for out, folders in (
        ((), ("coordinator", "worker-worker-0", "worker-worker-1")),
        (("--out", tmp_path / "out"), ("out/coordinator", "out/worker-0", "out/worker-1")),
    ):
        run("issue", *holders, "--dir", tmp_path, *out)
        shown = [json.loads(run("show", tmp_path / folder, "--json"))[0] for folder in folders]
        found = [(entry["role"], entry["name"]) for entry in shown]
        assert found == [("coordinator", "*"), ("worker", "worker-0"), ("worker", "worker-1")]
        assert run("issue", *holders, "--dir", tmp_path, *out, "--keep").count("already holds") == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["issue", "trainer", "--dir", "{}"], "psf certs init"),
        (["show", "{}/nothing.pem"], "missing"),
        (["show", "{}"], "missing"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        run(*(argument.format(tmp_path) for argument in arguments))
