"""Messages and actions are values: equal ones are equal, so schedules can be compared and repeated."""

import dataclasses
from typing import get_args

import pytest

from psframework.rref import messages
from psframework.rref.ids import ForkId
from psframework.rref.messages import Delete, Send


@pytest.mark.parametrize("kind", [*get_args(messages.Message), *get_args(messages.Action)])
def test_messages_and_actions_are_frozen(kind: type) -> None:
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_equal_messages_are_equal() -> None:
    assert Send(2, Delete(ForkId(1, 1))) == Send(2, Delete(ForkId(1, 1)))
