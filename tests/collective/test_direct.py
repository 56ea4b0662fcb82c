"""Chunks of direct operations: how many are on their way, and when memory may be written to."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from collective import Mail, collect, describe, opened

from psframework.collective import network, plan
from psframework.collective.descriptor import Operation
from psframework.collective.direct import WINDOW
from psframework.collective.network import Network
from psframework.collective.post import Key
from psframework.collective.tuning import Table


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan.chunks, "__defaults__", (80,))
    monkeypatch.setattr(plan.parts, "__defaults__", (80,))


async def test_only_so_many_chunks_are_on_their_way_to_a_rank() -> None:
    mail = Mail(2)
    release = mail.hold(lambda source, to, key: source == 0 and key.step > 0)
    sends = [np.arange(1000.0), np.zeros(1000)]
    transports = [Network(post, Table({})) for post in mail.posts]
    descriptor = describe(Operation.BROADCAST, sends[0])
    running = asyncio.ensure_future(collect(transports, [descriptor] * 2, sends))
    for _ in range(200):
        await asyncio.sleep(0)
    assert sum(source == 0 for source, *_ in mail.sent) == WINDOW + 1  # the first has arrived
    release()
    got = await running
    assert np.array_equal(got[1], sends[0])


def given_by(mail: Mail, rank: int) -> int:
    return sum(nbytes for source, _, _, nbytes in mail.sent if source == rank)


@pytest.mark.parametrize("size", [3, 4, 17])
@pytest.mark.parametrize("n", [0, 1, 5, 1000])
async def test_a_large_broadcast_leaves_its_root_twice_only(
    size: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SPREAD_BYTES", 0)
    sends = [np.arange(float(n)) + rank for rank in range(size)]
    for root in {0, 1, size - 1}:
        for known in (True, False):
            mail = Mail(size, seed=root)
            transports = [Network(post, Table()) for post in mail.posts]
            descriptor = describe(Operation.BROADCAST, sends[root], root=root)
            said = [descriptor if known or rank == root else opened(descriptor) for rank in range(size)]
            got = await collect(transports, said, sends)
            for rank in range(size):
                assert rank == root or np.array_equal(got[rank], sends[root]), (root, rank)
            assert given_by(mail, root) <= 2 * (sends[root].nbytes + 8 * size), "parts differ by one element"
            assert mail.untaken == 0
            for each in transports:
                await each.close()


async def test_between_two_ranks_and_below_a_size_it_is_sent_whole() -> None:
    for size, n in ((2, 1 << 18), (3, 1000)):
        mail = Mail(size)
        sends = [np.arange(float(n))] * size
        transports = [Network(post, Table()) for post in mail.posts]
        await collect(transports, [describe(Operation.BROADCAST, sends[0])] * size, sends)
        assert given_by(mail, 0) == (size - 1) * sends[0].nbytes
        assert given_by(mail, 1) == 0


@pytest.mark.parametrize("table", [Table({}), Table({2: 1 << 30})], ids=["parts", "whole"])
async def test_what_was_sent_is_overwritten_only_after_it_has_arrived(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "COPIED_BYTES", 0)
    mail = Mail(2)

    def early(source: int, to: int, key: Key) -> bool:
        return source == 0 and key.step == 0

    sends = [np.arange(100.0), np.arange(100.0) * 10]
    before = [each.copy() for each in sends]
    release = mail.hold(early)
    transports = [Network(post, table) for post in mail.posts]
    running = asyncio.ensure_future(
        collect(transports, [describe(Operation.ALL_REDUCE, sends[0])] * 2, sends)
    )
    for _ in range(100):
        await asyncio.sleep(0)
    assert np.array_equal(sends[0][50:60], before[0][50:60]), "rank 1 has not got it"
    release()
    got = await running
    assert all(np.array_equal(each, before[0] + before[1]) for each in got)
