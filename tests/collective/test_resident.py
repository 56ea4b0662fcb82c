"""Resident arrays: reduced in place between real processes; what is not the same bytes everywhere is not."""

from collections.abc import Iterator

import numpy as np
import pytest
from shm_crew import Crew, Member, every

from psframework import backend
from psframework.collective.algorithms import combine
from psframework.collective.descriptor import Operation
from psframework.collective.ops import ReduceOp
from psframework.collective.resident import Residents
from psframework.wire.shm import Segment

WHOLE = slice(None)


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    made = Crew(4)
    yield made
    made.end()


def values(size: int, length: int, dtype: str = "float32") -> list[np.ndarray]:
    kind = backend.dtype_from_name(dtype)
    return [np.random.default_rng(rank).normal(0, 3, length).astype(kind) for rank in range(size)]


def reduce(ranks: list[Member], numbers: list[int], cuts: list[slice], given: list[np.ndarray]) -> list:
    return every(ranks, "reduce_resident", numbers, cuts, given, [ReduceOp.AVG] * len(ranks))


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex128"])
def test_an_all_reduce_is_done_in_place_with_the_same_bits(crew: Crew, size: int, dtype: str):
    ranks = crew.enter(size)
    crew.reside(ranks, (7, 30_011), dtype)
    given = values(size, 7 * 30_011, dtype)
    expected = combine(ReduceOp.AVG, given, size)
    for array, barriers, error in reduce(ranks, [0] * size, [WHOLE] * size, given):
        assert error is None
        assert array.shape == (7, 30_011)
        assert array.tobytes() == expected.tobytes()
        assert barriers == 2  # copied through slots it takes more


def test_the_same_part_of_it_is_done_in_place_and_the_rest_stays(crew: Crew):
    ranks = crew.enter(2)
    for _ in range(2):
        crew.reside(ranks, (100_000,), "float32")
    given = values(2, 30_001)
    cut = slice(40_003, 70_004)
    for array, barriers, error in reduce(ranks, [1, 1], [cut] * 2, given):
        assert error is None
        assert array[cut].tobytes() == combine(ReduceOp.AVG, given, 2).tobytes()
        assert not array[:40_003].any()
        assert not array[70_004:].any()
        assert barriers == 2


@pytest.mark.parametrize(
    ("numbers", "cuts"),
    [
        ([0, 1], [slice(0, 50_000), slice(0, 50_000)]),
        ([0, 0], [slice(0, 50_000), slice(1, 50_001)]),
    ],
    ids=["other array", "other part"],
)
def test_what_lies_elsewhere_on_another_rank_is_copied(crew: Crew, numbers: list[int], cuts: list[slice]):
    ranks = crew.enter(2)
    for _ in range(2):
        crew.reside(ranks, (60_000,), "float32")
    given = values(2, 50_000)
    got = reduce(ranks, numbers, cuts, given)
    for cut, (array, _, error) in zip(cuts, got, strict=True):
        assert error is None
        assert array[cut].tobytes() == combine(ReduceOp.AVG, given, 2).tobytes()


def test_resident_on_one_rank_alone_is_copied(crew: Crew):
    ranks = crew.enter(2)
    crew.reside(ranks, (60_000,), "float32")
    given = values(2, 60_000)
    expected = combine(ReduceOp.AVG, given, 2).tobytes()
    for _ in range(3):  # slots go round, whoever filled them in vain
        ranks[0].tell("reduce_resident", 0, WHOLE, given[0], ReduceOp.AVG)
        ranks[1].tell("run", Operation.ALL_REDUCE, given[1], "same", ReduceOp.AVG)
        array, _, error = ranks[0].answer()
        assert error is None
        assert array.tobytes() == expected
        receive, _, error = ranks[1].answer()
        assert error is None
        assert receive.tobytes() == expected


def test_its_memory_goes_with_the_last_view(crew: Crew):
    ranks = crew.enter(2)
    crew.reside(ranks, (60_000,), "float32")
    assert every(ranks, "forget", [0, 0], [slice(3, 5), None]) == [1, 0]
    assert every(ranks, "forget", [0, 0]) == [0, 0]


async def test_an_array_without_elements_takes_no_memory():
    async def share(nbytes: int) -> Segment:
        raise AssertionError(f"{nbytes} bytes")

    residents = Residents(0, 2, share)
    assert (await residents.empty((0, 5), "int8")).shape == (0, 5)
    assert residents.find(np.empty(0)) is None


async def test_keys_fit_their_place_however_many_were_made():
    async def share(nbytes: int) -> Segment:
        return Segment.create(nbytes)

    residents = Residents(0, 2, share)
    keys = []
    for made in (0, 70_000, 1 << 40):
        residents._made = made
        array = await residents.empty((10,), "int8")
        place = residents.find(array[3:])
        assert place is not None and 0 < place.key < 1 << 64
        keys.append(place.key)
    assert len(set(keys)) == 3
