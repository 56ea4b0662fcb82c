"""When a rank uses many slots, and when few again."""

from psframework.collective.reach import AGAIN, SLOW, Reach

NBYTES = 256 << 10
QUICK, SLOWLY = NBYTES / SLOW / 4, NBYTES / SLOW * 2


def operation(reach: Reach, *seconds: float, nbytes: int = NBYTES) -> bool:
    for each in seconds:
        reach.note(nbytes, each)
    reach.settle()
    return reach.far


def test_few_slots_where_copies_are_quick():
    reach = Reach()
    assert not any(operation(reach, QUICK, QUICK) for _ in range(3 * AGAIN))


def test_one_quick_copy_shows_that_the_others_were_interrupted():
    assert not operation(Reach(), SLOWLY, SLOWLY, QUICK, SLOWLY)


def test_many_slots_where_all_copies_are_slow_with_another_chance_now_and_then():
    reach = Reach()
    assert operation(reach, SLOWLY, SLOWLY)
    assert [operation(reach, QUICK) for _ in range(AGAIN)] == [True] * (AGAIN - 1) + [False]
    assert operation(reach, SLOWLY)


def test_small_copies_and_operations_without_any_say_nothing():
    reach = Reach()
    assert not operation(reach, SLOWLY, nbytes=4096)
    assert not operation(reach)
    assert operation(reach, SLOWLY)
    assert all(operation(reach) for _ in range(2 * AGAIN))
