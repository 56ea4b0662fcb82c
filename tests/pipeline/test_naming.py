"""Names in the state of a pipe, and in those of its stages."""

import pytest

from psframework.errors import ArgumentError, ModelMismatch
from psframework.pipeline.naming import Naming

STATES = {0: {"0.weight": 1, "1.weight": 2}, 1: {"2.weight": 3}}


def test_listed_stages_are_named_by_their_numbers() -> None:
    naming = Naming(2)
    state = naming.join({1: {"weight": 2}, 0: {"a.b": 1}})
    assert list(state.items()) == [("0.a.b", 1), ("1.weight", 2)]
    assert naming.split(state) == {0: {"a.b": 1}, 1: {"weight": 2}}


def test_a_sequential_keeps_its_names() -> None:
    naming = Naming(2, [["0", "1"], ["2"]])
    state = naming.join(STATES)
    assert state == {"0.weight": 1, "1.weight": 2, "2.weight": 3}
    assert naming.split(state) == STATES


def test_a_stage_without_any_has_an_empty_state() -> None:
    assert Naming(3).split({"1.w": 5}) == {0: {}, 1: {"w": 5}, 2: {}}


def test_a_name_of_no_stage() -> None:
    with pytest.raises(ModelMismatch, match=r"no 7\.w, x: its names begin with 0\., 1\.$"):
        Naming(2).split({"0.w": 1, "7.w": 2, "x": 3})


def test_ties_are_in_the_order_of_the_stages() -> None:
    assert Naming(3).tie(("2.head.weight", "0.table.weight")) == ((0, "table.weight"), (2, "head.weight"))
    assert Naming(2, [["0", "1"], ["2"]]).tie(("1.w", "2.w")) == ((0, "1.w"), (1, "2.w"))


@pytest.mark.parametrize("names", [("0.a", "0.b"), ("0.a",), ("0.a", "0.a"), ("0.a", "0.b", "1.c")])
def test_a_tie_is_of_several_stages(names: tuple[str, ...]) -> None:
    with pytest.raises(ArgumentError, match="of each of several stages"):
        Naming(2).tie(names)


def test_a_tie_with_a_stage_that_is_not_there() -> None:
    with pytest.raises(ArgumentError, match=r"'2\.a', which is in no stage"):
        Naming(2).tie(("0.a", "2.a"))
