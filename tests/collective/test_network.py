"""Every operation over letters equals the reference; losses, deadlines and mismatches reach all ranks."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from collective import SHARING, Mail, collect, describe, opened, prepare, run_work
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psframework.collective import network, plan
from psframework.collective.agreement import MESH
from psframework.collective.algorithms import reference
from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.network import THREADED_BYTES, Network
from psframework.collective.ops import ReduceOp
from psframework.collective.tuning import Table
from psframework.collective.work import Flat
from psframework.errors import CollectiveMismatch, DeadlineExceeded, PeerLost, WireError
from psframework.rpc.deadline import Deadline

ALL = [each for each in Operation if each not in (Operation.SEND, Operation.RECV, Operation.REFUSE)]
TABLES = {
    "whole": Table({64: 1 << 40}),
    "direct": Table({}),
    "ring": Table().only("ring", deterministic=False),
}
DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "bfloat16"]
OPS = {
    "b": [ReduceOp.SUM, ReduceOp.MIN, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR],
    "i": [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MAX, ReduceOp.BXOR],
    "f": [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX],
    "c": [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT],
}
OPS["u"], OPS["V"] = OPS["i"], OPS["f"]


def made(dtype: str, size: int, n: int, seed: int = 0, *, exact: bool = False) -> list[Flat]:
    """An array a rank; `exact`: of small whole numbers, of which sums are the same in any order."""
    random = np.random.default_rng(seed)
    values = random.integers(-2, 3, (size, n)) if exact else random.standard_normal((size, n)) * 3
    return list(values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))


def networks(mail: Mail, table: Table) -> list[Network]:
    return [Network(post, table, group="g") for post in mail.posts]


async def run(
    mail: Mail,
    table: Table,
    descriptor: Descriptor,
    sends: list[Flat | None],
    deadline: Deadline | None = None,
) -> list[Flat | BaseException | None]:
    transports = networks(mail, table)
    try:
        return await collect(transports, [descriptor] * len(sends), sends, deadline)
    finally:
        for each in transports:
            await each.close()


def same(got: object, expected: Flat | None) -> bool:
    if expected is None or not isinstance(got, np.ndarray):
        return expected is None and not isinstance(got, BaseException)
    return got.dtype == expected.dtype and got.tobytes() == expected.tobytes()


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_operation_is_the_reference(data: st.DataObject) -> None:
    operation = data.draw(st.sampled_from(ALL))
    size = data.draw(st.sampled_from([2, 3, 4, 7, 17]))
    dtype = data.draw(st.sampled_from(DTYPES))
    name = data.draw(st.sampled_from(sorted(TABLES)))
    rows = data.draw(st.integers(0, 9))
    n = rows * size if operation in SHARING else rows * 7
    sends = made(dtype, size, n, exact=name == "ring")
    op = data.draw(st.sampled_from(OPS[sends[0].dtype.kind if dtype != "bfloat16" else "f"]))
    if name == "ring" and op is ReduceOp.PRODUCT:
        op = ReduceOp.SUM
    descriptor = describe(operation, sends[0], op=op, root=data.draw(st.integers(0, size - 1)))
    expected = reference(descriptor, {rank: each.copy() for rank, each in enumerate(sends)}, size)
    before = [each.tobytes() for each in sends]
    mail = Mail(size, seed=data.draw(st.integers(0, 1000)))
    got = asyncio.run(run(mail, TABLES[name], descriptor, list(sends)))
    for rank in range(size):
        assert same(got[rank], expected[rank]), (rank, got[rank], expected[rank])
        if operation is not Operation.ALL_REDUCE and not (
            operation is Operation.REDUCE and rank == descriptor.root
        ):
            assert sends[rank].tobytes() == before[rank], "what a rank gives is left alone"
    assert mail.untaken == 0


@pytest.mark.parametrize("copied", [0, 1 << 20])
@pytest.mark.parametrize("name", sorted(TABLES))
@pytest.mark.parametrize("operation", ALL)
async def test_many_chunks(
    name: str, operation: Operation, copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "COPIED_BYTES", copied)
    monkeypatch.setattr(plan.chunks, "__defaults__", (64,))
    monkeypatch.setattr(plan.parts, "__defaults__", (64,))
    size = 4
    sends = made("float32", size, 4 * 1000, exact=name == "ring")
    descriptor = describe(operation, sends[0], root=2)
    expected = reference(descriptor, {rank: each.copy() for rank, each in enumerate(sends)}, size)
    mail = Mail(size, seed=5)
    got = await run(mail, TABLES[name], descriptor, list(sends))
    assert all(same(got[rank], expected[rank]) for rank in range(size))
    assert mail.untaken == 0


@pytest.mark.parametrize("name", ["whole", "direct"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
async def test_direct_adds_in_rank_order(name: str, dtype: str) -> None:
    sends = made(dtype, 7, 1001)
    descriptor = describe(Operation.ALL_REDUCE, sends[0])
    expected = reference(descriptor, dict(enumerate(sends)), 7)[0]
    got = await run(Mail(7), TABLES[name], descriptor, [each.copy() for each in sends])
    assert all(same(each, expected) for each in got)


async def test_what_takes_long_is_combined_in_a_thread() -> None:
    sends = made("float32", 2, THREADED_BYTES // 4)
    descriptor = describe(Operation.REDUCE, sends[0])
    expected = sends[0] + sends[1]
    got = await run(Mail(2), TABLES["direct"], descriptor, list(sends))
    assert same(got[0], expected)


@pytest.mark.parametrize("size", [2, MESH + 1])
@pytest.mark.parametrize("operation", [Operation.BROADCAST, Operation.SCATTER])
async def test_ranks_that_know_no_shape_take_the_root_s(size: int, operation: Operation) -> None:
    send = np.arange(3.0 * size)
    descriptor = describe(operation, send, root=1)
    descriptors = [descriptor if rank == 1 else opened(descriptor) for rank in range(size)]
    transports = networks(Mail(size), TABLES["direct"])
    got = await collect(transports, descriptors, [send if rank == 1 else None for rank in range(size)])
    expected = reference(descriptor, {1: send}, size)
    assert all(same(got[rank], expected[rank]) for rank in range(size))
    for each in transports:
        await each.close()


DIFFERENT = {
    "operation": lambda each: replace(
        each, operation=Operation.BARRIER, op=None, root=-1, dtype="", shape=()
    ),
    "dtype": lambda each: replace(each, dtype="float16"),
    "shape": lambda each: replace(each, shape=(3, 4)),
    "root": lambda each: replace(each, root=1) if each.root >= 0 else None,
    "op": lambda each: replace(each, op=ReduceOp.MAX) if each.op else None,
    "refused": lambda each: Descriptor(each.sequence, Operation.REFUSE, note="my model has no gradients"),
}


@pytest.mark.parametrize("what", sorted(DIFFERENT))
@pytest.mark.parametrize("operation", [each for each in ALL if each is not Operation.BARRIER])
@pytest.mark.parametrize(("name", "size"), [("direct", 2), ("whole", 4), ("ring", 3), ("ring", MESH + 2)])
async def test_a_difference_is_told_to_all_and_the_group_lives_on(
    name: str, what: str, operation: Operation, size: int
) -> None:
    sends = made("float32", size, 12 * size, exact=True)
    usual = describe(operation, sends[0])
    other = DIFFERENT[what](usual)
    if other is None:
        return
    odd = size - 1
    mail = Mail(size, seed=1)
    transports = networks(mail, TABLES[name])
    descriptors = [other if rank == odd else usual for rank in range(size)]
    given = [
        None if rank == odd and what in ("operation", "refused") else each for rank, each in enumerate(sends)
    ]
    before = [each.copy() for each in sends]
    errors = await collect(transports, descriptors, given, Deadline.after(5))
    assert {type(each) for each in errors} == {CollectiveMismatch}, errors
    words = (
        [f"rank {odd} (trainer-{odd})", "my model has no gradients"]
        if what == "refused"
        else [str(usual), str(other)]
    )
    assert all(word in str(error) for error in errors for word in words), errors[0]
    assert all(np.array_equal(a, b) for a, b in zip(before, sends)), "no data moved"

    after = replace(usual, sequence=2)
    expected = reference(after, dict(enumerate(before)), size)
    got = await collect(transports, [after] * size, sends)
    assert all(same(got[rank], expected[rank]) for rank in range(size))
    for each in transports:
        await each.close()


async def test_roots_in_a_circle_are_found_out() -> None:
    sends = made("float32", 3, 4)
    transports = networks(Mail(3), TABLES["direct"])
    descriptors = [describe(Operation.REDUCE, sends[0], root=(rank + 1) % 3) for rank in range(3)]
    errors = await collect(transports, descriptors, sends, Deadline.after(5))
    assert {type(each) for each in errors} == {CollectiveMismatch}


@pytest.mark.parametrize("name", sorted(TABLES))
@pytest.mark.parametrize("size", [4, MESH + 1])
async def test_ranks_that_do_not_come_are_named(name: str, size: int) -> None:
    sends = made("float32", size, 40)
    transports = networks(Mail(size), TABLES[name])
    work = [
        prepare(describe(Operation.ALL_REDUCE, sends[0]), rank, size, sends[rank], Deadline.after(0.2))
        for rank in range(size)
    ]
    errors = await asyncio.gather(*(run_work(transports[rank], work[rank]) for rank in range(size - 2)))
    assert {type(each) for each in errors} == {DeadlineExceeded}
    if size <= MESH:
        for error in errors:
            assert "ranks 2 (trainer-2), 3 (trainer-3) did not come" in str(error)
    else:
        assert any(f"{size - 1} (trainer-{size - 1})" in str(error) for error in errors)


async def test_what_did_not_arrive_in_time_is_no_success_of_its_sender() -> None:
    mail = Mail(2)
    mail.hold(lambda source, to, key: source == 0 and key.step > 0)
    transports = networks(mail, TABLES["direct"])
    sends = [np.zeros(plan.PART_BYTES), np.zeros(plan.PART_BYTES)]
    descriptor = describe(Operation.BROADCAST, sends[0])
    errors = await collect(transports, [descriptor] * 2, sends, Deadline.after(0.3))
    assert {type(each) for each in errors} == {DeadlineExceeded}
    assert "rank 1 (trainer-1) did not come in time" in str(errors[0])


@pytest.mark.parametrize("name", sorted(TABLES))
async def test_nothing_is_written_before_the_last_descriptor(name: str) -> None:
    mail = Mail(3)
    sends = made("float32", 3, 30, exact=True)
    before = [each.copy() for each in sends]
    release = mail.hold(lambda source, to, key: source == 2 and key.step == 0)
    transports = networks(mail, TABLES[name])
    running = asyncio.ensure_future(
        collect(transports, [describe(Operation.ALL_REDUCE, sends[0])] * 3, sends)
    )
    for _ in range(50):
        await asyncio.sleep(0)
    assert not running.done()
    assert all(np.array_equal(sends[rank], before[rank]) for rank in (0, 1))
    release()
    assert all(same(each, before[0] + before[1] + before[2]) for each in await running)


@pytest.mark.parametrize("name", sorted(TABLES))
@pytest.mark.parametrize("operation", ALL)
async def test_a_lost_rank_ends_the_operation_of_all(name: str, operation: Operation) -> None:
    mail = Mail(4)
    sends = made("float32", 4, 40)
    mail.hold(lambda source, to, key: source == 3)
    transports = networks(mail, TABLES[name])
    running = asyncio.ensure_future(collect(transports, [describe(operation, sends[0])] * 4, sends))
    for _ in range(20):
        await asyncio.sleep(0)
    mail.lose(3)
    for post in mail.posts[3:]:
        post.abort(PeerLost("this rank is dead"))
    lost = PeerLost("rank 3 (trainer-3) is gone", peer="trainer-3")
    for each in transports:
        each.abort(lost)
    errors = await running
    assert all(error is lost for error in errors[:3])
    assert (
        await run_work(
            transports[0], prepare(describe(operation, sends[0]), 0, 4, sends[0], Deadline.after(5))
        )
        is lost
    )


async def test_a_loss_that_only_the_post_knows_names_the_rank() -> None:
    mail = Mail(2)
    mail.hold(lambda source, to, key: source == 1)
    sends = made("float32", 2, 40)
    transports = networks(mail, TABLES["direct"])
    work = prepare(describe(Operation.ALL_REDUCE, sends[0]), 0, 2, sends[0], Deadline.after(5))
    running = asyncio.ensure_future(run_work(transports[0], work))
    await asyncio.sleep(0)
    mail.lose(1)
    error = await running
    assert isinstance(error, PeerLost) and error.peer == "trainer-1"


async def test_an_abort_right_after_the_start_ends_it_once() -> None:
    transports = networks(Mail(2), TABLES["direct"])
    send = np.zeros(3)
    work = prepare(describe(Operation.ALL_REDUCE, send), 0, 2, send, Deadline.after(5))
    running = asyncio.ensure_future(run_work(transports[0], work))
    await asyncio.sleep(0)
    lost = PeerLost("gone")
    transports[0].abort(lost)
    assert await running is lost


async def test_close_ends_what_runs() -> None:
    transports = networks(Mail(2), TABLES["direct"])
    send = np.zeros(3)
    work = prepare(describe(Operation.ALL_REDUCE, send), 0, 2, send, Deadline.NEVER)
    running = asyncio.ensure_future(run_work(transports[0], work))
    await asyncio.sleep(0)
    await transports[0].close()
    assert "closed" in str(await running)


async def test_two_channels_of_one_post_do_not_mix() -> None:
    mail = Mail(2, seed=3)
    sends = made("int64", 2, 10)
    outer = [Network(post, TABLES["direct"], group="g") for post in mail.posts]
    inner = [Network(post, TABLES["whole"], "leaders", "g") for post in mail.posts]
    descriptor = describe(Operation.ALL_REDUCE, sends[0])
    again = [each.copy() for each in sends]
    both = await asyncio.gather(
        collect(outer, [descriptor] * 2, sends), collect(inner, [descriptor] * 2, again)
    )
    assert all(same(each, both[0][0]) for got in both for each in got)
    assert {letter[2].channel for letter in mail.sent} == {"", "leaders"}


def test_name_is_what_large_ones_take() -> None:
    async def names() -> list[str]:
        return [Network(Mail(size).posts[0], Table()).name for size in (2, 16, 17)]

    assert asyncio.run(names()) == ["direct", "direct", "ring"]


async def test_a_small_one_ends_when_the_others_arrive_and_close_waits_for_its_own_to() -> None:
    mail = Mail(2)
    release = mail.hold(lambda source, to, key: source == 0)
    sends = [np.ones(3), np.ones(3)]
    transports = networks(mail, TABLES["whole"])
    descriptor = describe(Operation.ALL_REDUCE, sends[0])
    works = [prepare(descriptor, rank, 2, sends[rank], Deadline.after(5)) for rank in range(2)]
    other = asyncio.ensure_future(run_work(transports[1], works[1]))
    assert await run_work(transports[0], works[0]) is None
    sends[0][:] = 50  # which rank 1 must not see
    closing = asyncio.ensure_future(transports[0].close())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not closing.done() and not other.done()
    release()
    await closing
    assert await other is None and sends[1].tolist() == [2, 2, 2]


async def test_a_letter_that_is_refused_fails_what_follows() -> None:
    mail = Mail(2)
    sends = [np.ones(3), np.ones(3)]
    transports = networks(mail, TABLES["whole"])
    refused = WireError("no such letter")

    async def refuse(*letter: object) -> None:
        raise refused

    mail.posts[0].send = refuse  # type: ignore[method-assign]
    descriptor = describe(Operation.ALL_REDUCE, sends[0])
    work = prepare(descriptor, 0, 2, sends[0], Deadline.after(5))
    assert await run_work(transports[0], work) is refused
