"""Jobs end one lease after their last member left."""

from psframework.membership.jobs import JOB_PREFIX, JobTable, group_keys
from psframework.membership.store import Write
from psframework.membership.view import Member


def test_a_job_ends_one_lease_after_its_last_member() -> None:
    table = JobTable()
    assert table.begin("", 0.0) == ()
    assert table.begin("a", 0.0) == (Write(JOB_PREFIX + "a", b""),)
    trainer = Member("t", "trainer", "a", 1, lease_s=3.0)
    table.observe([trainer], 0.0)
    assert table.ended(100.0) == []
    table.observe([], 101.0)
    assert table.ended(103.9) == [] and "a" in table
    assert table.ended(104.0) == ["a"] and "a" not in table
    assert table.ended(200.0) == []


def test_somebody_comes_back_in_time() -> None:
    table = JobTable()
    table.begin("a", 0.0)
    table.observe([], 0.0)
    table.observe([Member("t", "trainer", "a", 1)], 4.0)
    assert table.ended(50.0) == []


def test_a_job_of_before_the_restart_ends_too() -> None:
    table = JobTable()
    table.load([(JOB_PREFIX + "a", b""), (JOB_PREFIX + "b", b"")], 10.0)
    table.observe([Member("t", "trainer", "b", 1)], 10.0)
    assert table.ended(14.9) == [] and table.ended(15.0) == ["a"]


def test_a_job_does_not_end_under_somebody_who_is_joining() -> None:
    table = JobTable()
    trainer = Member("t", "trainer", "a", 1, lease_s=3.0)
    table.begin("a", 0.0)
    table.observe([trainer], 0.0)
    table.observe([], 10.0)
    table.begin("a", 12.9)  # decided; in the view only once it is durable
    assert table.ended(13.0) == []
    table.observe([trainer], 13.1)
    table.observe([], 20.0)
    assert table.ended(22.9) == [] and table.ended(23.0) == ["a"]


def test_a_join_that_could_not_be_stored_leaves_no_job_behind() -> None:
    table = JobTable()
    table.begin("a", 0.0)
    assert table.begin("a", 1.0) == (Write(JOB_PREFIX + "a", b""),)  # the first one may not be stored
    assert table.ended(5.9) == [] and table.ended(6.0) == ["a"]


def test_keys_of_groups_are_of_one_job() -> None:
    assert group_keys("a") == "group/a/"
    assert not group_keys("ab").startswith(group_keys("a"))
