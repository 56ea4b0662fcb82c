"""Clocks of services: one under one kernel, the fastest answer's under another."""

from psframework.pipeline.clocks import Clocks, kernel


def test_processes_of_one_kernel_have_one_clock() -> None:
    clocks = Clocks("a")
    clocks.note("stage-0", "a", 5.0, 5.25)
    assert clocks.here("stage-0", 3.0) == 3.0


def test_of_another_kernel_the_fastest_answer_counts() -> None:
    clocks = Clocks("a")
    for clock, received in [(5.0, 105.5), (6.0, 106.25), (7.0, 108.0)]:
        clocks.note("stage-0", "b", clock, received)
    assert clocks.here("stage-0", 3.0) == 103.25


def test_kernels_without_a_name_are_not_one() -> None:
    clocks = Clocks("")
    clocks.note("stage-0", "", 5.0, 6.0)
    assert clocks.here("stage-0", 5.0) == 6.0


def test_a_service_that_never_answered() -> None:
    assert Clocks("a").here("stage-0", 1.0) == 1.0


def test_the_kernel_has_one_name() -> None:
    assert kernel() == kernel()
