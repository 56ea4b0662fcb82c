"""What a member's agent learns of others, and what services need not import for it."""

import subprocess
import sys

import pytest

from psframework.cluster.agent import tell_losses
from psframework.membership.lease import Reason
from psframework.membership.view import Member


class FakeMembership:
    """Keeps the hook that is asked to be called, and says that incarnation 7 is stalled."""

    def on_lost(self, hook) -> None:
        self.tell = hook

    def is_stalled(self, incarnation: int) -> bool:
        return incarnation == 7


class FakeAgent:
    def __init__(self) -> None:
        self.told: list[tuple] = []

    def lost(self, *what) -> None:
        self.told.append(what)

    def stalled(self, name, incarnation, still) -> None:
        self.told.append((name, incarnation, still()))


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason is not Reason.STALLED])
def test_a_member_that_is_dead_is_lost_with_the_reason(reason: Reason) -> None:
    membership, agent = FakeMembership(), FakeAgent()
    tell_losses(membership, agent)
    membership.tell(Member("worker-0", "worker", "", 5), reason)
    assert agent.told == [("worker-0", 5, str(reason))]


@pytest.mark.parametrize(("incarnation", "still"), [(7, True), (8, False)])
def test_a_stalled_member_is_asked_about_again(incarnation: int, still: bool) -> None:
    membership, agent = FakeMembership(), FakeAgent()
    tell_losses(membership, agent)
    membership.tell(Member("worker-0", "worker", "", incarnation), Reason.STALLED)
    assert agent.told == [("worker-0", incarnation, still)]


@pytest.mark.parametrize(
    ("service", "unneeded"),
    [
        ("coordinator", ("autograd", "nn", "optim", "rref", "collective", "ddp", "pipeline")),
        ("parameter_server", ("nn", "rref", "collective", "dist_autograd", "ddp", "pipeline")),
        ("worker", ("rpc.security.tls", "rpc.security.certificates")),  # without TLS
    ],
)
def test_a_service_starts_without_what_only_clients_and_workers_do(
    service: str, unneeded: tuple[str, ...]
) -> None:
    code = (
        f"import sys, services.{service}\n"
        f"assert not {{f'psframework.{{name}}' for name in {unneeded}}} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
