"""What a member may want of a group, and what all must agree on."""

import pytest

from psframework.collective.options import GroupOptions
from psframework.collective.tuning import Table
from psframework.errors import ArgumentError


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"world_size": 0}, "world_size=0"),
        ({"world_size": 1 << 30}, "world_size="),
        ({"world_size": 2, "rank": -1}, "rank=-1: ranks are 0 to 1"),
        ({"world_size": 2, "timeout": -1.0}, "timeout=-1.0"),
        ({"world_size": 2, "algorithm": "nccl"}, "algorithm='nccl'"),
    ],
)
def test_wishes_that_can_not_be(options: dict[str, int], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        GroupOptions(**options).check()  # type: ignore[arg-type]


def test_what_all_must_agree_on_is_in_the_spec() -> None:
    spec = GroupOptions(3, rank=1, deterministic=True, algorithm="direct", timeout=1.0).spec(Table())
    assert (spec.world_size, spec.deterministic, spec.algorithm) == (3, True, "direct")
    assert spec.tuning == Table().digest
    assert spec == GroupOptions(3, rank=2, deterministic=True, algorithm="direct").spec(Table())
