"""Members are found by name; who was never there is told from who is gone."""

from dataclasses import replace
from typing import Any

import pytest

from psframework.cluster import directory
from psframework.cluster.directory import HERE, LISTENS, Directory
from psframework.errors import ArgumentError, NotRegistered, PeerLost
from psframework.membership.lease import Reason
from psframework.membership.view import Delta, Member, MemberState, View
from psframework.rpc.call import PeerInfo

WORKER = Member("worker-0", "worker", "", 1, ("a:1", "b:2"))
TRAINER = Member("trainer-0", "trainer", "default", 2)
NEIGHBOUR = Member("near", "trainer", "", 3, ("127.0.0.1:1",), labels={"listens": "here", "host": "mine"})
STRANGER = Member("far", "trainer", "", 4, ("127.0.0.1:1",), labels={"listens": "here", "host": "other"})


class FakeMembership:
    def __init__(self, *members: Member) -> None:
        self.view = View(1, members)
        self.member = Member("me", "trainer", "", 9, labels={"host": "mine"})
        self.hooks: list[Any] = []

    def on_lost(self, hook: Any) -> None:
        self.hooks.append(hook)

    def find(self, name: str) -> Member | None:
        return self.view.find(name)

    def members(self) -> tuple[Member, ...]:
        return self.view.members

    def lose(self, member: Member, reason: Reason = Reason.LEASE) -> None:
        if reason is not Reason.STALLED:
            self.view = View(self.view.number + 1, [m for m in self.view.members if m != member])
        for hook in self.hooks:
            hook(member, reason)

    def add(self, member: Member) -> None:
        self.view = self.view.apply(Delta(self.view.number + 1, (member,)))


@pytest.fixture
def membership() -> FakeMembership:
    return FakeMembership(WORKER, TRAINER)


@pytest.fixture
def found(membership: FakeMembership) -> Directory:
    return Directory(membership)  # type: ignore[arg-type]


@pytest.mark.parametrize("to", ["worker-0", WORKER, PeerInfo("worker-0", "worker", "", 1)], ids=repr)
def test_by_name_and_by_what_has_one(found: Directory, to: Any) -> None:
    assert found.address_of(to) == (("a:1", "b:2"), "worker", 1)


def test_one_that_can_not_listen(found: Directory) -> None:
    assert found.address_of("trainer-0") == ((), "trainer", 2)


def test_one_that_listens_on_its_own_machine_only(found: Directory, membership: FakeMembership) -> None:
    membership.add(NEIGHBOUR)
    membership.add(STRANGER)
    assert found.address_of("near").addresses == ("127.0.0.1:1",)
    assert found.address_of("far").addresses == ()


def test_one_that_never_was(found: Directory) -> None:
    with pytest.raises(NotRegistered, match=r"no member 'worker-1' in this cluster; there are worker-0"):
        found.address_of("worker-1")
    with pytest.raises(NotRegistered, match=r"there are trainer-0, worker-0"):
        found.address_of("xyz")


def test_one_that_is_gone(found: Directory, membership: FakeMembership) -> None:
    membership.lose(WORKER)
    for to in ("worker-0", WORKER):
        with pytest.raises(PeerLost, match=r"worker-0 is gone \(lease\)") as caught:
            found.address_of(to)
        assert (caught.value.peer, caught.value.may_have_run) == ("worker-0", False)


def test_one_that_came_back(found: Directory, membership: FakeMembership) -> None:
    membership.lose(WORKER)
    membership.add(Member("worker-0", "worker", "", 3, ("c:3",)))
    assert found.address_of("worker-0") == (("c:3",), "worker", 3)


def test_one_that_stalls_is_still_there(found: Directory, membership: FakeMembership) -> None:
    membership.lose(WORKER, Reason.STALLED)
    membership.add(replace(WORKER, state=MemberState.STALLED))
    with pytest.raises(PeerLost, match="worker-0 is stalled") as caught:
        found.address_of("worker-0")
    assert (caught.value.reason, caught.value.may_have_run) == ("stalled", False)
    membership.add(WORKER)
    assert found.address_of("worker-0").incarnation == WORKER.incarnation


def test_whose_life_is_over(membership: FakeMembership) -> None:
    """The view says it, also of those who left before we came; of the newest, only once they were seen."""
    membership.add(Member("late", "trainer", "", 5))
    found = Directory(membership)  # type: ignore[arg-type]
    assert [n for n in range(1, 9) if found.has_ended(n)] == [3, 4]
    membership.lose(WORKER)
    membership.lose(Member("brief", "trainer", "", 7))
    assert [n for n in range(1, 9) if found.has_ended(n)] == [1, 3, 4, 6, 7]
    membership.lose(TRAINER, Reason.STALLED)
    assert not found.has_ended(TRAINER.incarnation)


@pytest.mark.parametrize(
    ("addresses", "labels", "who"),
    [
        ((), {"host": "h"}, ""),
        (("h:1",), {"host": "h"}, "*"),
        (("127.0.0.1:1",), {"host": "h", LISTENS: HERE}, "h"),
        (("127.0.0.1:1",), {LISTENS: HERE}, ""),
    ],
)
def test_who_can_dial_this_process(
    found: Directory, membership: FakeMembership, addresses: tuple[str, ...], labels: dict[str, str], who: str
) -> None:
    membership.member = replace(membership.member, addresses=addresses, labels=labels)
    assert found.listens() == who


@pytest.mark.parametrize("to", [None, 7])
def test_what_is_no_member(found: Directory, to: Any) -> None:
    with pytest.raises(ArgumentError, match="is no member"):
        found.address_of(to)


def test_the_memory_of_the_gone_is_bounded(
    found: Directory, membership: FakeMembership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "REMEMBERED", 3)
    for number in range(10):
        membership.lose(Member(f"m-{number}", "worker", "", 100 + number))
    assert len(found._gone) == 3
    with pytest.raises(NotRegistered):
        found.address_of("m-0")
    with pytest.raises(PeerLost):
        found.address_of("m-9")
