"""Jobs end one lease after their last member left."""

from psframework.membership.jobs import JOB_PREFIX, JobTable
from psframework.membership.store import Write
from psframework.membership.view import Member


def test_a_job_ends_one_lease_after_its_last_member() -> None:
    table = JobTable()
    assert table.begin("") == ()
    assert table.begin("a") == (Write(JOB_PREFIX + "a", b""),)
    assert table.begin("a") == ()
    trainer = Member("t", "trainer", "a", 1, lease_s=3.0)
    table.observe([trainer], 0.0)
    assert table.ended(100.0) == []
    table.observe([], 101.0)
    assert table.ended(103.9) == [] and "a" in table
    assert table.ended(104.0) == ["a"] and "a" not in table
    assert table.ended(200.0) == []


def test_somebody_comes_back_in_time() -> None:
    table = JobTable()
    table.begin("a")
    table.observe([], 0.0)
    table.observe([Member("t", "trainer", "a", 1)], 4.0)
    assert table.ended(50.0) == []


def test_a_job_of_before_the_restart_ends_too() -> None:
    table = JobTable()
    table.load([(JOB_PREFIX + "a", b""), (JOB_PREFIX + "b", b"")], 10.0)
    table.observe([Member("t", "trainer", "b", 1)], 10.0)
    assert table.begin("a") == ()
    assert table.ended(14.9) == [] and table.ended(15.0) == ["a"]
