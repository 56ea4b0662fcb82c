"""Views: applied changes equal the whole view, by whichever way a watcher learns of them."""

import random
from dataclasses import replace

from psframework.membership.lease import Reason
from psframework.membership.view import HISTORY, Delta, Departure, Member, MemberState, View, ViewLog


def member(incarnation: int, name: str | None = None, **more: object) -> Member:
    return Member(name or f"w-{incarnation}", "worker", incarnation=incarnation, **more)  # type: ignore[arg-type]


def test_find_get_select() -> None:
    view = View(3, [member(2, job="a"), Member("ps", "parameter-server", incarnation=1)])
    assert [m.incarnation for m in view.members] == [1, 2]
    assert view.find("ps") is view.get(1) and view.find("nobody") is None and view.get(9) is None
    assert [m.name for m in view.select(role="worker")] == ["w-2"]
    assert [m.name for m in view.select(job="a")] == ["w-2"]
    assert view.select(role="parameter-server", job="a") == ()
    assert len(view.select()) == 2


def test_a_taken_over_name_belongs_to_the_new_incarnation() -> None:
    view = View(1, [member(1, "w")])
    view = view.apply(Delta(2, (member(2, "w"),), (Departure(member(1, "w"), Reason.REPLACED),)))
    assert view.number == 2 and view.find("w") == member(2, "w") and len(view.members) == 1


def test_members_stay_in_the_order_of_joining() -> None:
    view = View(1, [member(5), member(2)])
    view = view.apply(Delta(2, (member(9), member(7))))
    view = view.apply(Delta(3, (member(3), replace(member(2), state=MemberState.STALLED))))
    assert [m.incarnation for m in view.members] == [2, 3, 5, 7, 9]
    assert view.members[0].state is MemberState.STALLED


def random_changes(seed: int, count: int) -> list[Delta]:
    rng, live, deltas = random.Random(seed), {}, []
    for number in range(1, count + 1):
        changed, departed = [], []
        if live and rng.random() < 0.4:
            gone = live.pop(rng.choice(list(live)))
            departed.append(Departure(gone, Reason.LEASE))
        elif live and rng.random() < 0.3:
            other = live[rng.choice(list(live))]
            changed.append(replace(other, state=MemberState.STALLED))
            live[other.incarnation] = changed[-1]
        else:
            changed.append(member(number))
            live[number] = changed[-1]
        deltas.append(Delta(number, tuple(changed), tuple(departed)))
    return deltas


def test_a_watcher_at_any_number_catches_up() -> None:
    log, views = ViewLog(View()), [View()]
    for delta in random_changes(1, 200):
        log.publish(delta)
        views.append(log.view)
    for view in views:
        delta = log.since(view.number)
        assert delta is not None
        assert view.apply(delta).members == log.view.members


def test_a_watcher_too_far_behind_gets_none() -> None:
    log = ViewLog(View())
    for delta in random_changes(2, HISTORY + 10):
        log.publish(delta)
    assert log.since(3) is None
    assert log.since(HISTORY) is not None
    assert log.since(10**9) is None  # of another history


def test_changes_to_a_whole_view() -> None:
    old = View(4, [member(1), member(2)])
    new = View(9, [replace(member(2), state=MemberState.STALLED), member(3)])
    delta = old.changes_to(new)
    assert [m.incarnation for m in delta.changed] == [2, 3]
    assert [gone.member.incarnation for gone in delta.departed] == [1]
    assert old.apply(delta).members == new.members and old.apply(delta).number == 9


def test_listeners_see_the_new_view() -> None:
    log, seen = ViewLog(View()), []
    log.listen(lambda delta: seen.append((delta.number, log.view.number)))
    log.publish(Delta(1, (member(1),)))
    assert seen == [(1, 1)]
