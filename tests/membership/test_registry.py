"""Joins, leaves and fences as decisions: names, incarnations, take-overs, and undone changes."""

import pytest

from psframework.errors import ArgumentError, Evicted, NameTaken
from psframework.membership.lease import Reason
from psframework.membership.registry import JoinSpec, Registry
from psframework.membership.store import Change
from psframework.membership.view import Member, MemberState


def join(registry: Registry, spec: JoinSpec, now: float, asked_at: float | None = None) -> Member:
    decided = registry.join(spec, now if asked_at is None else asked_at, now)
    assert decided is not None
    member, change = decided
    assert change is not None
    change.publish()
    return member


def tick(registry: Registry, now: float) -> list[tuple[str, Reason]]:
    change = registry.tick(now)
    if change is None:
        return []
    before = registry.log.view
    change.publish()
    after = registry.log.view
    delta = registry.log.since(before.number)
    assert delta is not None and after.number > before.number
    return [(gone.member.name, gone.reason) for gone in delta.departed]


def test_names_are_given_lowest_first() -> None:
    registry = Registry(0.0)
    names = [join(registry, JoinSpec("worker"), 0.0).name for _ in range(3)]
    assert names == ["worker-0", "worker-1", "worker-2"]
    change = registry.leave(2, 0.0)
    assert change is not None
    change.publish()
    assert join(registry, JoinSpec("worker"), 0.0).name == "worker-1"
    assert registry.log.view.find("worker-1").incarnation == 4  # type: ignore[union-attr]


def test_a_live_holder_is_undisturbed() -> None:
    registry = Registry(0.0)
    holder = join(registry, JoinSpec("worker", "w", addresses=("10.0.0.1:5",)), 0.0)
    assert registry.join(JoinSpec("worker", "w"), 1.0, 1.0) is None  # is it silent?
    registry.renew(holder.incarnation, 1, 1.5)
    with pytest.raises(NameTaken, match=r"'w' belongs to a live member .*10\.0\.0\.1:5"):
        registry.join(JoinSpec("worker", "w"), 1.0, 1.6)
    assert registry.log.view.find("w") == holder


def test_a_closed_holder_is_replaced_in_one_view() -> None:
    registry = Registry(0.0)
    holder = join(registry, JoinSpec("worker", "w"), 0.0)
    registry.leases.stream_opened(holder.incarnation, 1)
    number = registry.log.view.number
    for tenth in range(1, 23):
        if tenth == 10:
            registry.leases.stream_closed(holder.incarnation, 1, 1.0)
        assert tick(registry, tenth / 10) == []
    newcomer = join(registry, JoinSpec("worker", "w"), 2.3, asked_at=1.1)
    assert newcomer.incarnation > holder.incarnation
    delta = registry.log.since(number)
    assert delta is not None
    assert [(gone.member, gone.reason) for gone in delta.departed] == [(holder, Reason.REPLACED)]
    assert registry.log.view.members == (newcomer,)
    with pytest.raises(Evicted, match="join again"):
        registry.renew(holder.incarnation, 2, 2.4)


def test_a_silent_holder_is_waited_for_as_long_as_its_lease() -> None:
    registry = Registry(0.0)
    join(registry, JoinSpec("worker", "w", lease_s=3.0), 0.0)
    for tenth in range(30):
        now = tenth / 10
        tick(registry, now)
        assert registry.join(JoinSpec("worker", "w"), 0.5, now) is None
    assert tick(registry, 3.0) == [("w", Reason.LEASE)]
    assert join(registry, JoinSpec("worker", "w"), 3.0, asked_at=0.5).incarnation == 2


def test_a_coordinator_that_slept_does_not_take_its_own_silence_for_the_holders() -> None:
    """The first message after a gap is a join: renewals that wait behind it must not be missed."""
    registry = Registry(0.0)
    holder = join(registry, JoinSpec("worker", "w", lease_s=5.0), 0.0)
    registry.leases.stream_opened(holder.incarnation, 1)
    for tenth in range(1, 10):
        tick(registry, tenth / 10)
    registry.leases.stream_closed(holder.incarnation, 1, 0.9)  # it breaks, and the coordinator sleeps
    assert registry.join(JoinSpec("worker", "w"), 4.9, 4.9) is None
    registry.renew(holder.incarnation, 1, 4.95)
    with pytest.raises(NameTaken):
        registry.join(JoinSpec("worker", "w"), 4.9, 5.0)


def test_a_repeated_request_is_the_same_member() -> None:
    registry = Registry(0.0)
    spec = JoinSpec("worker", "w", nonce=b"n")
    member = join(registry, spec, 0.0)
    assert registry.join(spec, 0.1, 0.1) == (member, None)
    registry.leave(member.incarnation, 0.2)
    assert registry.join(spec, 0.3, 0.3)[0].incarnation == 2  # type: ignore[index]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (JoinSpec(""), "role"),
        (JoinSpec("a b"), "role"),
        (JoinSpec("w", "x/y"), "name"),
        (JoinSpec("w", job="ö"), "job"),
        (JoinSpec("w", lease_s=0.0), "lease"),
    ],
)
def test_refused(spec: JoinSpec, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Registry(0.0).join(spec, 0.0, 0.0)


def test_stalled_members_stay_and_recover() -> None:
    registry = Registry(0.0)
    member = join(registry, JoinSpec("worker"), 0.0)
    for second in range(62):
        registry.renew(member.incarnation, 1, float(second))
        tick(registry, float(second))
    assert registry.log.view.members[0].state.value == "stalled"
    registry.renew(member.incarnation, 2, 62.0)
    tick(registry, 62.0)
    assert registry.log.view.members[0].state.value == "live"


def test_what_is_undone_never_was() -> None:
    registry = Registry(0.0)
    first = join(registry, JoinSpec("worker", "a", nonce=b"a"), 0.0)
    changes: list[Change] = []
    leaving = registry.leave(first.incarnation, 0.0)
    assert leaving is not None
    changes.append(leaving)
    newcomer, change = registry.join(JoinSpec("worker", "a"), 0.0, 0.0) or (None, None)
    assert newcomer is not None and change is not None
    changes.append(change)
    for change in reversed(changes):
        change.undo()
    assert registry.check_live(first.incarnation) == first
    with pytest.raises(Evicted):
        registry.check_live(newcomer.incarnation)
    assert registry.join(JoinSpec("worker", "a", nonce=b"a"), 0.0, 0.0) == (first, None)
    assert registry.log.view.members == (first,)
    assert join(registry, JoinSpec("worker", "b"), 0.0).incarnation > newcomer.incarnation


def test_loaded_members_keep_their_incarnations_and_a_lease_of_grace() -> None:
    registry = Registry(0.0)
    old = Member("w", "worker", incarnation=7, lease_s=2.0)
    registry.load([(old, b"n")], incarnation=9, number=40, now=0.0)
    assert registry.log.view.number == 40 and registry.log.view.members == (old,)
    assert registry.join(JoinSpec("worker", "w", nonce=b"n"), 0.0, 0.0) == (old, None)
    assert join(registry, JoinSpec("worker"), 0.0).incarnation == 10
    for tenth in range(1, 20):
        assert tick(registry, tenth / 10) == []
    assert tick(registry, 2.0) == [("w", Reason.LEASE)]


def test_a_repeated_join_begins_its_lease_anew() -> None:
    registry = Registry(0.0)
    spec = JoinSpec("worker", "w", lease_s=5.0, nonce=b"n")
    join(registry, spec, 0.0)
    for tenth in range(1, 40):
        assert tick(registry, tenth / 10) == []
    assert registry.join(spec, 3.9, 3.9) is not None  # the answer to the first was lost
    for tenth in range(40, 89):
        assert tick(registry, tenth / 10) == []  # the holder believes that it holds until 8.9
    assert tick(registry, 9.0) == [("w", Reason.LEASE)]


def test_a_stall_that_could_not_be_stored_is_told_again() -> None:
    registry = Registry(0.0)
    member = join(registry, JoinSpec("worker", "w", lease_s=600.0), 0.0)
    for second in range(1, 60):
        assert registry.renew(member.incarnation, 0, float(second)) and registry.tick(float(second)) is None
    change = registry.tick(60.0)
    assert change is not None
    change.undo()
    change = registry.tick(60.1)
    assert change is not None
    change.publish()
    assert registry.log.view.members[0].state is MemberState.STALLED
    assert registry.tick(60.2) is None
