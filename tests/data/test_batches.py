"""Mini-batches."""

from typing import Any

import numpy as np
import pytest

from psframework.data import ShardedSampler, batches
from psframework.errors import ArgumentError

X = np.arange(20).reshape(10, 2)
Y = np.arange(10)


def labels(**options: Any) -> list[list[int]]:
    return [y.tolist() for _, y in batches(X, Y, 4, **options)]


def test_in_order() -> None:
    assert labels() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert labels(drop_last=True) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_samples_and_targets_stay_together() -> None:
    for x, y in batches(X, Y, 3, seed=1):
        np.testing.assert_array_equal(x[:, 0], 2 * y)


def test_shuffles_repeat_by_seed_and_epoch() -> None:
    assert labels(seed=1) == labels(seed=1)
    assert labels(seed=1) != labels(seed=2)
    assert labels(seed=1) != labels(seed=1, epoch=1)
    assert sorted(i for batch in labels(seed=1, epoch=1) for i in batch) == list(range(10))


def test_a_sampler_shards_and_counts_epochs() -> None:
    samplers = [ShardedSampler(10, rank, 2, seed=None) for rank in range(2)]
    assert [labels(sampler=s) for s in samplers] == [[[0, 2, 4, 6], [8]], [[1, 3, 5, 7], [9]]]
    assert labels(sampler=samplers[0], drop_last=True) == [[0, 2, 4, 6]]
    assert (samplers[0].epoch, samplers[0].position) == (2, 0)


def test_the_samplers_state_between_batches_is_where_to_resume() -> None:
    sampler = ShardedSampler(10, seed=5)
    running = batches(X, Y, 4, sampler=sampler)
    next(running)
    state = sampler.state_dict()
    rest = [y.tolist() for _, y in running]
    resumed = ShardedSampler(10)
    resumed.load_state_dict(state)
    assert labels(sampler=resumed) == rest


@pytest.mark.parametrize(
    ("x", "y", "size", "options", "words"),
    [
        (X, Y[:9], 4, {}, "x has 10 samples, y has 9"),
        (X, Y, 0, {}, "at least 1"),
        (X[:0], Y[:0], 4, {}, "at least one sample"),
        (X, Y, 4, {"sampler": ShardedSampler(9)}, "over 9 samples"),
        (X, Y, 4, {"sampler": ShardedSampler(10), "seed": 1}, "to the sampler"),
    ],
)
def test_bad_arguments_raise_at_once(x: Any, y: Any, size: int, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        batches(x, y, size, **options)
