"""Names of contexts and messages."""

from psframework.dist_autograd.ids import ContextId, TensorsId


def test_names_are_values_that_people_can_read() -> None:
    assert str(ContextId(7, 1)) == "7.1"
    assert str(TensorsId(9, 4)) == "9.4"
    assert ContextId(7, 1) == ContextId(7, 1) != ContextId(7, 2)
    assert len({TensorsId(9, 4), TensorsId(9, 4), TensorsId(9, 5)}) == 2
