"""Rules of who may call what: just the roles, names and functions they name, and a line for each no."""

import pytest
from structlog.testing import capture_logs

from psframework.errors import ConfigurationError, PermissionDenied
from psframework.rpc.call import PeerInfo
from psframework.rpc.security import allow
from psframework.rpc.security.allow import EVERYONE, AllowList

TRAINER = PeerInfo("t-0", "trainer", "default", 1, "psf://cluster/trainer/t-0")
WORKER = PeerInfo("worker-1", "worker", "", 2)


def test_without_rules_everybody_may() -> None:
    EVERYONE.check(TRAINER, "anything")
    assert not EVERYONE
    assert AllowList(["a:b"])


@pytest.mark.parametrize(
    ("rule", "peer", "function", "may"),
    [
        ("trainer:m.add", TRAINER, "m.add", True),
        ("trainer:m.add", TRAINER, "m.adder", False),
        ("trainer:m.*", TRAINER, "m.Net.forward", True),
        ("trainer:m.*", WORKER, "m.add", False),
        ("*:m.add", WORKER, "m.add", True),
        ("trainer/t-0:*", TRAINER, "m.add", True),
        ("trainer/t-1:*", TRAINER, "m.add", False),
        ("worker/worker-?:m.*", WORKER, "m.add", True),
        ("trainer/a:b:m.add", PeerInfo("a:b", "trainer", "", 1), "m.add", True),
        ("TRAINER:m.add", TRAINER, "m.add", False),
    ],
)
def test_rules(rule: str, peer: PeerInfo, function: str, may: bool) -> None:
    rules = AllowList(["nobody:nothing", rule])
    for _ in range(2):  # the second is out of memory
        if may:
            rules.check(peer, function)
        else:
            with pytest.raises(
                PermissionDenied, match=f"{peer.name}.*{function}.*--allow {peer.role}:{function}"
            ):
                rules.check(peer, function)


def test_both_the_roles_of_the_function_and_the_rules_must_hold() -> None:
    rules = AllowList(["*:m.*"])
    rules.check(TRAINER, "m.add", frozenset({"trainer"}))
    with pytest.raises(PermissionDenied, match=r"worker-1 has the role 'worker'; m\.add needs 'trainer'"):
        rules.check(WORKER, "m.add", frozenset({"trainer"}))
    with pytest.raises(PermissionDenied, match="no rule"):
        rules.check(TRAINER, "other", frozenset({"trainer"}))


def test_each_refusal_is_a_line_of_the_audit_log() -> None:
    with capture_logs() as lines, pytest.raises(PermissionDenied):
        AllowList(["worker:*"]).check(TRAINER, "m.add")
    (line,) = lines
    assert line["logger"] == "psframework.audit"
    assert (line["event"], line["what"], line["peer"], line["role"]) == ("refused", "m.add", "t-0", "trainer")
    assert line["certificate"] == "psf://cluster/trainer/t-0"
    assert "no rule" in line["reason"]


@pytest.mark.parametrize("text", ["", "trainer", "trainer:", ":m.add", "trainer/:m.add", "/x:m.add"])
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(ConfigurationError, match="ROLE:FUNCTION"):
        AllowList([text])


def test_decisions_are_forgotten_before_they_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allow, "REMEMBERED", 10)
    rules = AllowList(["*:m.*"])
    for number in range(50):
        rules.check(TRAINER, f"m.f{number}")
    assert len(rules._decided) <= 10
