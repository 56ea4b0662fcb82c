"""Callbacks for the end of a session: each once, in order, unless taken back."""

from collections.abc import Callable

from psframework.rpc.session.mourners import Mourners


def test_each_is_told_once_in_order() -> None:
    told: list[str] = []
    mourners = Mourners()
    for name in "abc":
        mourners.add(lambda name=name: told.append(name))  # type: ignore[misc]
    mourners.tell()
    mourners.tell()
    assert told == ["a", "b", "c"]


def test_what_was_taken_back_is_not_told_even_by_another_that_is() -> None:
    told: list[str] = []
    mourners = Mourners()
    mourners.add(lambda: told.append("a"))()
    others: list[Callable[[], None]] = []

    def take_the_next_back() -> None:
        others[0]()

    mourners.add(take_the_next_back)
    others.append(mourners.add(lambda: told.append("c")))
    mourners.tell()
    assert told == []


def test_who_comes_while_others_are_told_waits_for_another_time() -> None:
    told: list[str] = []
    mourners = Mourners()

    def again() -> None:
        told.append("x")
        mourners.add(again)

    mourners.add(again)
    mourners.tell()
    assert told == ["x"]
