"""How much may be on the way."""

import pytest

from psframework.errors import WireError
from psframework.rpc.session.window import Window


def test_the_window_admits_bytes_and_one_oversized_payload() -> None:
    window = Window(100)
    assert window.admit(1000)
    assert not window.admit(1)
    window.give_back(1000)
    assert window.admit(60) and window.admit(40) and not window.admit(1)
    with pytest.raises(WireError, match="consumed"):
        window.give_back(2000)


def test_a_peer_that_ignores_the_window_is_caught() -> None:
    window = Window(own_size=100)
    window.take_in(5000)
    with pytest.raises(WireError, match="window"):
        window.take_in(1)
    window.consumed = 5000
    window.take_in(60)
    window.take_in(40)
    with pytest.raises(WireError, match="window"):
        window.take_in(1)


def test_what_was_consumed_is_reported_once_and_much_of_it_soon() -> None:
    window = Window(1000)
    assert not window.owes_report
    window.consumed += 100
    assert window.owes_report and not window.report_is_urgent
    window.consumed += 150
    assert window.report_is_urgent
    assert window.report() == 250
    assert not window.owes_report and not window.report_is_urgent
