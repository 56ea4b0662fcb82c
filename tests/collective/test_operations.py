"""Each collective of a group against NumPy, its arguments, and mistakes that all ranks hear of."""

import asyncio
import inspect

import numpy as np
import pytest
from groups import groups

import psframework as psf
from psframework.collective.operations import Collectives
from psframework.collective.ops import ReduceOp
from psframework.errors import ArgumentError, CollectiveMismatch

SIZE = 3


@pytest.fixture
async def made():
    async with groups(SIZE) as made:
        yield made


def arrays(*shape: int, dtype: str = "float64") -> list[np.ndarray]:
    return [np.random.default_rng(rank).standard_normal(shape).astype(dtype) for rank in range(SIZE)]


async def everywhere(made, call):
    return await asyncio.gather(*(call(group) for group in made))


async def test_in_place_ones_answer_their_array(made):
    for call in (
        lambda group, array: group.all_reduce(array),
        lambda group, array: group.broadcast(array, 1),
        lambda group, array: group.reduce(array, 2),
    ):
        own = arrays(2, 3)
        got = await everywhere(made, lambda group, call=call, own=own: call(group, own[group.rank]))
        assert all(mine is its for mine, its in zip(own, got, strict=True))
    tensors = [psf.tensor([1.0, 2.0]) for _ in range(SIZE)]
    got = await everywhere(made, lambda group: group.all_reduce(tensors[group.rank]))
    assert got[0] is tensors[0]
    np.testing.assert_array_equal(tensors[0].data, [3.0, 6.0])


@pytest.mark.parametrize("root", range(SIZE))
async def test_reduce_leaves_the_others_alone(made, root):
    """pytorch#76527."""
    own = arrays(2, 3)
    before = [each.copy() for each in own]
    for rank in range(SIZE):
        own[rank].flags.writeable = rank == root
    await everywhere(made, lambda group: group.reduce(own[group.rank], root, ReduceOp.MAX))
    for rank in range(SIZE):
        np.testing.assert_array_equal(own[rank], np.max(before, axis=0) if rank == root else before[rank])


@pytest.mark.parametrize("root", range(SIZE))
async def test_broadcast_of_a_strided_array(made, root):
    """pytorch#192920."""
    own = arrays(4, 2)
    before = [each.copy() for each in own]
    await everywhere(made, lambda group: group.broadcast(own[group.rank][:, 0], root))
    for rank in range(SIZE):
        np.testing.assert_array_equal(own[rank][:, 0], before[root][:, 0])
        np.testing.assert_array_equal(own[rank][:, 1], before[rank][:, 1])


async def test_a_read_only_source(made):
    own = arrays(4)
    own[1].flags.writeable = False
    await everywhere(made, lambda group: group.broadcast(own[group.rank], 1))
    np.testing.assert_array_equal(own[0], own[1])


@pytest.mark.parametrize("shape", [(), (0, 2), (2, 3)])
async def test_gathering(made, shape):
    own = arrays(*shape)
    for got in await everywhere(made, lambda group: group.all_gather(own[group.rank])):
        np.testing.assert_array_equal(got, np.stack(own))
    got = await everywhere(made, lambda group: group.gather(own[group.rank], 1))
    np.testing.assert_array_equal(got[1], np.stack(own))
    assert got[0] is None and got[2] is None


@pytest.mark.parametrize("shape", [(3,), (0, 2), (6, 2)])
async def test_parts_of_axis_0(made, shape):
    own = arrays(*shape)
    before = [each.copy() for each in own]
    k = shape[0] // SIZE
    parts = [slice(rank * k, (rank + 1) * k) for rank in range(SIZE)]
    got = await everywhere(made, lambda group: group.scatter(own[0] if group.rank == 0 else None, 0))
    for rank in range(SIZE):
        np.testing.assert_array_equal(got[rank], own[0][parts[rank]])
        assert got[rank].flags.writeable
    got = await everywhere(made, lambda group: group.reduce_scatter(own[group.rank], ReduceOp.MIN))
    for rank in range(SIZE):
        np.testing.assert_array_equal(got[rank], np.min(own, axis=0)[parts[rank]])
    got = await everywhere(made, lambda group: group.all_to_all(own[group.rank]))
    for rank in range(SIZE):
        np.testing.assert_array_equal(got[rank], np.concatenate([each[parts[rank]] for each in own]))
    np.testing.assert_array_equal(own, before)


MISTAKES = {
    "no array": (lambda group: group.all_reduce([1, 2]), "not an array"),
    "a read-only array": (lambda group: group.all_reduce(np.broadcast_to(1.0, 3)), "read-only"),
    "AVG of integers": (lambda group: group.all_reduce(np.array([1, 2], np.int32), ReduceOp.AVG), "AVG"),
    "no op": (lambda group: group.all_reduce(np.ones(2), "sum"), "psf.ReduceOp"),
    "no such rank": (lambda group: group.broadcast(np.ones(2), SIZE), "ranks 0 to 2"),
    "no rank": (lambda group: group.reduce(np.ones(2), "a"), "ranks 0 to 2"),
    "rows that do not divide": (lambda group: group.all_to_all(np.ones((4, 3))), r"\(4, 3\) can't be cut"),
    "no rows": (lambda group: group.reduce_scatter(np.array(1.0)), r"shape \(\) can't be cut"),
    "dates": (lambda group: group.all_gather(np.zeros(2, "M8[s]")), "dtype"),
    "a negative timeout": (lambda group: group.barrier(timeout=-1), "timeout"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_of_one_rank_reaches_all_and_the_group_lives_on(made, mistake):
    """chainermn#236, pytorch#84525."""
    call, text = MISTAKES[mistake]
    others = [made[rank].all_reduce(np.ones(3)) for rank in (0, 2)]
    with pytest.raises(ArgumentError, match=text):
        call(made[1])
    for other in others:
        with pytest.raises(CollectiveMismatch, match=r"rank 1 \(trainer-1\): \w+: ArgumentError: .*" + text):
            await other
    assert await everywhere(made, lambda group: group.barrier()) == [None] * SIZE
    assert {group.last_completed for group in made} == {2}


async def test_objects_are_no_arrays(made):
    for wrong, right in (
        (lambda group: group.broadcast(np.zeros(3), 1), lambda group: group.broadcast_object(None, 1)),
        (lambda group: group.all_gather(np.array([7])), lambda group: group.gather_object("x", 1)),
    ):
        calls = [(wrong if group.rank == 1 else right)(group) for group in made]
        for call in calls:
            with pytest.raises(CollectiveMismatch, match=r"_object\(root 1\)"):
                await call
    assert await everywhere(made, lambda group: group.barrier()) == [None] * SIZE


async def test_a_mistake_of_all_ranks_keeps_them_in_step(made):
    """torchcomms#287."""
    for group in made:
        with pytest.raises(ArgumentError, match="AVG of int32"):
            group.all_reduce(np.array([1], np.int32), ReduceOp.AVG)
    got = await everywhere(made, lambda group: group.all_reduce(np.array([1.0 + group.rank]), ReduceOp.AVG))
    assert got == [2.0] * SIZE


DIFFERENT = {
    "dtype": lambda group, one: group.all_reduce(np.ones(3, np.float16 if one else np.float32)),
    "shape": lambda group, one: group.all_reduce(np.ones(()) if one else np.ones((3, 4))),
    "operation": lambda group, one: group.barrier() if one else group.all_gather(np.ones(3)),
    "op": lambda group, one: group.all_reduce(np.ones(3), ReduceOp.MAX if one else ReduceOp.SUM),
    "root": lambda group, one: group.broadcast(np.ones(3), 1 if one else 0),
}


@pytest.mark.parametrize("what", DIFFERENT)
async def test_differences_name_both_sides_on_all_ranks(made, what):
    for result in await asyncio.gather(
        *(DIFFERENT[what](group, group.rank == 1) for group in made), return_exceptions=True
    ):
        assert isinstance(result, CollectiveMismatch)
        assert "rank 1 (trainer-1)" in str(result) and "0 (trainer-0), 2 (trainer-2)" in str(result)
    await everywhere(made, lambda group: group.barrier())


def test_every_operation_says_what_it_does():
    for name, method in inspect.getmembers(Collectives, inspect.isfunction):
        if not name.startswith("_"):
            assert method.__doc__ and "timeout" in inspect.signature(method).parameters, name
