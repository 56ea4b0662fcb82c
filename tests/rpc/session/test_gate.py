"""What waits for a window goes in order."""

from psframework.rpc.session.gate import Gate
from psframework.rpc.session.window import Window


def test_what_waits_for_the_window_goes_in_order_and_only_if_wanted() -> None:
    gate = Gate(Window(100))
    sent: list[int] = []
    for number, wanted in ((1, True), (2, True), (3, False), (4, True)):
        gate.when_admitted(60, lambda wanted=wanted: wanted, lambda number=number: sent.append(number))  # type: ignore[misc]
    assert sent == [1]
    gate.give_back(60)
    assert sent == [1, 2]
    gate.give_back(120)
    assert sent == [1, 2, 4]
    gate.when_admitted(60, lambda: True, lambda: sent.append(5))
    gate.drop_waiting()
    gate.give_back(180)
    assert sent == [1, 2, 4]


def test_who_gives_up_is_forgotten_and_holds_up_nobody() -> None:
    gate = Gate(Window(100))
    sent: list[str] = []
    assert gate.when_admitted(60, lambda: True, lambda: sent.append("first")) == 0
    large = gate.when_admitted(90, lambda: True, lambda: sent.append("large"))
    gate.when_admitted(30, lambda: True, lambda: sent.append("small"))
    assert sent == ["first"] and gate.is_waiting
    gate.withdraw(large)
    assert sent == ["first", "small"] and not gate.is_waiting
    gate.withdraw(large)
    gate.withdraw(0)
