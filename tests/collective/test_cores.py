"""Which core a thread is on, and leaving it."""

import os
import threading

from psframework.collective import cores


def test_a_thread_leaves_the_cores_that_are_taken_and_keeps_its_choice_of_cores():
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        assert not cores.leave(allowed)
        return
    found: list[int] = []

    def thread() -> None:
        for core in allowed:
            os.sched_setaffinity(0, {core})
            assert cores.current() == core
            os.sched_setaffinity(0, allowed)
            assert cores.leave(allowed - {core})
            assert os.sched_getaffinity(0) == allowed
            found.append(core)

    runner = threading.Thread(target=thread)
    runner.start()
    runner.join(10)
    assert found == list(allowed)
    assert os.sched_getaffinity(0) == allowed


def test_a_thread_stays_where_there_is_no_other_core():
    assert not cores.leave(os.sched_getaffinity(0))
