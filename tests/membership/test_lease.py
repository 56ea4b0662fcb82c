"""Leases: fenced when silent, never while renewed, and not for a gap of the coordinator itself."""

import pytest

from psframework.errors import ArgumentError
from psframework.membership.lease import (
    Health,
    HeldLease,
    LeaseOptions,
    LeaseTable,
    Reason,
    check_lease,
    renewal_interval,
)


def due(table: LeaseTable, now: float) -> dict[int, Reason]:
    table.observe(now)
    return dict(table.due(now))


def run(table: LeaseTable, start: float, end: float, step: float = 0.1) -> dict[int, float]:
    """Ticks from `start` to `end`; returns when each incarnation became due."""
    first: dict[int, float] = {}
    now = start
    while now < end:
        for incarnation in due(table, now):
            first.setdefault(incarnation, now)
        now += step
    return first


def test_silent_member_is_due_after_its_lease() -> None:
    table = LeaseTable(0.0)
    table.add(1, 5.0, 0.0)
    table.add(2, 3.0, 0.0)
    fenced = run(table, 0.0, 8.0)
    assert fenced[1] == pytest.approx(5.0, abs=0.11) and fenced[2] == pytest.approx(3.0, abs=0.11)


def test_renewals_keep_it() -> None:
    table = LeaseTable(0.0)
    table.add(1, 3.0, 0.0)
    for second in range(1, 20):
        assert table.renew(1, second, float(second)) == 3.0
        assert run(table, float(second), second + 1.0) == {}
    assert table.renew(2, 0, 1.0) is None


def test_closed_stream_is_due_after_the_grace() -> None:
    table = LeaseTable(0.0)
    table.add(1, 60.0, 0.0)
    table.stream_opened(1, 7)
    table.stream_closed(1, 7, 1.0)
    assert run(table, 1.0, 4.0)[1] == pytest.approx(2.5, abs=0.11)
    assert due(table, 4.0) == {1: Reason.CLOSED}


def test_renewals_or_a_new_stream_outweigh_a_closed_one() -> None:
    table = LeaseTable(0.0)
    for incarnation in (1, 2):
        table.add(incarnation, 60.0, 0.0)
        table.stream_opened(incarnation, 1)
        table.stream_opened(incarnation, 2)
        table.stream_closed(incarnation, 1, 0.5)  # the other one is open
    assert run(table, 0.0, 5.0) == {}
    table.stream_closed(1, 2, 5.0)
    table.stream_closed(2, 2, 5.0)
    table.stream_opened(2, 3)
    table.renew(1, 1, 6.0)
    assert run(table, 5.0, 7.4) == {}
    assert due(table, 7.5) == {1: Reason.CLOSED}


def test_a_stream_of_the_dead_is_ignored() -> None:
    table = LeaseTable(0.0)
    table.stream_opened(9, 1)
    table.stream_closed(9, 1, 0.0)
    assert 9 not in table


def test_nobody_is_evicted_for_one_lease_after_a_start() -> None:
    table = LeaseTable(0.0)
    table.add(1, 5.0, 0.0, hold=True)
    table.stream_opened(1, 1)
    table.stream_closed(1, 1, 0.5)
    assert run(table, 0.0, 6.0)[1] == pytest.approx(5.0, abs=0.11)


def test_nobody_is_evicted_for_one_lease_after_a_gap() -> None:
    table = LeaseTable(0.0)
    table.add(1, 5.0, 0.0)
    table.add(2, 60.0, 0.0)
    assert run(table, 0.0, 3.0) == {}
    assert due(table, 9.0) == {}  # 6 s without a tick: nobody could renew
    fenced = run(table, 9.0, 15.0)
    assert fenced == {1: pytest.approx(14.0, abs=0.11)}


def test_a_short_gap_is_none() -> None:
    table = LeaseTable(0.0)
    table.add(1, 5.0, 0.0)
    run(table, 0.0, 4.0)
    assert due(table, 5.05) == {1: Reason.LEASE}  # about a second late: less than a third of the lease


def test_stall_is_told_once_each_way() -> None:
    table = LeaseTable(0.0, LeaseOptions(stall_limit=60.0))
    table.add(1, 5.0, 0.0)
    for second in range(1, 61):
        table.observe(float(second))
        table.renew(1, 1, float(second))
        assert list(table.stall_changes(float(second))) == []
    table.observe(61.0)
    assert list(table.stall_changes(61.0)) == [(1, True)]
    assert list(table.stall_changes(62.0)) == []
    table.renew(1, 2, 63.0)
    assert list(table.stall_changes(63.0)) == [(1, False)]


def test_a_gap_of_the_coordinator_is_no_stall() -> None:
    table = LeaseTable(0.0, LeaseOptions(stall_limit=60.0))
    table.add(1, 5.0, 0.0)
    table.observe(100.0)
    assert list(table.stall_changes(100.0)) == []


def test_health_of_a_holder_whose_name_is_wanted() -> None:
    table = LeaseTable(0.0)
    table.add(1, 5.0, 0.0)
    table.stream_opened(1, 1)
    assert table.health(2, 0.0, 0.0) is Health.GONE
    assert table.health(1, 1.0, 1.0) is Health.SILENT
    table.renew(1, 1, 1.5)
    assert table.health(1, 1.0, 1.6) is Health.LIVE
    assert table.health(1, 2.0, 2.0) is Health.SILENT  # asked later: only newer signs of life count
    table.stream_closed(1, 1, 3.0)
    assert table.health(1, 2.0, 4.2) is Health.SILENT  # it may just reconnect, and renews every second
    assert table.health(1, 2.0, 4.25) is Health.GONE
    table.renew(1, 2, 4.3)
    assert table.health(1, 2.0, 9.0) is Health.LIVE


def test_holder_counts_from_sending() -> None:
    held = HeldLease(5.0, 10.0)
    assert held.remaining(12.0) == 3.0
    held.answered(13.0, 4.0)
    assert held.remaining(16.0) == 1.0 and held.seconds == 4.0
    held.answered(11.0, 4.0)  # an answer that arrives late shortens nothing
    assert held.remaining(16.0) == 1.0
    assert held.remaining(99.0) == 0.0


def test_lengths() -> None:
    assert check_lease(5.0) == 5.0
    for seconds in (0.0, 0.4, -1.0, 3601.0, float("nan"), float("inf")):
        with pytest.raises(ArgumentError, match="lease"):
            check_lease(seconds)
    assert renewal_interval(2.0) == 0.5 and renewal_interval(60.0) == 1.0
