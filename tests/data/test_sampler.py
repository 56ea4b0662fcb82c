"""ShardedSampler: every sample once an epoch, whatever the ranks; resumes at another world size."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.data import ShardedSampler
from psframework.errors import ArgumentError


@given(
    n=st.integers(1, 50), size=st.integers(1, 7), epoch=st.integers(0, 3), seed=st.none() | st.integers(0, 9)
)
def test_ranks_cover_an_epoch(n: int, size: int, epoch: int, seed: int | None) -> None:
    shares = []
    for rank in range(size):
        sampler = ShardedSampler(n, rank, size, seed)
        sampler.set_epoch(epoch)
        expected = len(sampler)
        shares.append(list(sampler))
        assert len(shares[-1]) == expected == -(-n // size)
    together = [share[i] for i in range(len(shares[0])) for share in shares]
    assert sorted(together[:n]) == list(range(n))


def test_epochs_differ_and_repeat() -> None:
    sampler = ShardedSampler(20, seed=3)
    first, second = list(sampler), list(sampler)
    assert first != second and sampler.epoch == 2
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_without_seed_in_order() -> None:
    assert list(ShardedSampler(5, 1, 2, None)) == [1, 3, 0]


@given(taken=st.integers(0, 10), sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_resumes_at_another_world_size(taken: int, sizes: tuple[int, int]) -> None:
    n, (old, new) = 60, sizes
    before = [ShardedSampler(n, rank, old, 1) for rank in range(old)]
    seen = [int(i) for sampler in before for i in sampler.take(taken)]
    state = before[0].state_dict()
    assert all(sampler.state_dict() == state for sampler in before)

    after = [ShardedSampler(n, rank, new) for rank in range(new)]
    for sampler in after:
        sampler.load_state_dict(state)
        sampler.set_epoch(0)  # the loop's own call keeps the place
    left = [list(sampler) for sampler in after]
    rest = [share[i] for i in range(len(left[0])) for share in left]
    assert sorted(seen + rest[: n - len(seen)]) == list(range(n))


def test_take_stops_at_the_end() -> None:
    sampler = ShardedSampler(5, seed=None)
    np.testing.assert_array_equal(sampler.take(3), [0, 1, 2])
    np.testing.assert_array_equal(sampler.take(3), [3, 4])
    assert len(sampler.take(3)) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((0,), "at least one sample"), ((5, 2, 2), r"\[0, size\), not 2 of 2"), ((5, -1, 2), "not -1 of 2")],
)
def test_bad_arguments(arguments: tuple[int, ...], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        ShardedSampler(*arguments)


@pytest.mark.parametrize("state", [{}, {"n": 6, "seed": 0, "epoch": 0, "position": 0}, {"n": 5}])
def test_bad_state(state: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="over 5 samples"):
        ShardedSampler(5).load_state_dict(state)


def test_bad_epoch() -> None:
    with pytest.raises(ArgumentError, match="epoch must be at least 0"):
        ShardedSampler(5).set_epoch(-1)
