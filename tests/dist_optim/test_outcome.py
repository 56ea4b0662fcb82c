"""What several owners answered."""

import pytest

from psframework.dist_optim.outcome import check_all
from psframework.errors import ContextClosed, PartialFailure, PeerLost

OWNERS = ["a", "b", "c"]


def test_results_in_order() -> None:
    assert check_all("step", OWNERS, [None, 2, "three"]) == [None, 2, "three"]


def test_some_failed() -> None:
    lost = PeerLost("gone", peer="b")
    with pytest.raises(PartialFailure, match=r"^b did not step: b: PeerLost: gone\. Done by a, c$") as caught:
        check_all("step", OWNERS, [None, lost, None])
    assert (caught.value.failed, caught.value.done) == (("b",), ("a", "c"))
    assert caught.value.__cause__ is lost


def test_all_failed_alike() -> None:
    errors = [ContextClosed(owner) for owner in OWNERS]
    with pytest.raises(ContextClosed) as caught:
        check_all("step", OWNERS, errors)
    assert caught.value is errors[0]
    assert caught.value.__notes__ == ["on a, b, c"]


def test_all_failed_for_different_reasons() -> None:
    with pytest.raises(
        PartialFailure, match=r"a: ValueError: x; b: PeerLost: gone; c: ValueError: y$"
    ) as caught:
        check_all("step", OWNERS, [ValueError("x"), PeerLost("gone"), ValueError("y")])
    assert (caught.value.failed, caught.value.done) == (tuple(OWNERS), ())


def test_nobody_did_it_if_all_had_to_answer() -> None:
    with pytest.raises(
        PartialFailure, match=r"^c did not tell, so none stepped: c: ValueError: x$"
    ) as caught:
        check_all("tell, so none stepped", OWNERS, [1, 2, ValueError("x")], none_done=True)
    assert (caught.value.failed, caught.value.done) == (tuple(OWNERS), ())
