"""send and recv: order for each pair and tag, deadlines and cancelling, both sending first."""

import asyncio

import numpy as np
import pytest
from groups import groups

from psframework import backend
from psframework.collective.arrays import HEAVY
from psframework.errors import ArgumentError, ContextClosed, DeadlineExceeded, PeerLost
from psframework.testing.strict_device import strict_devices


@pytest.mark.parametrize("array", [
    np.array(3.5), np.empty((0, 3)), np.arange(6.0).reshape(2, 3)[:, 0], np.asfortranarray(np.ones((2, 3))),
    np.arange(3).astype(">i4"), np.ones(2, backend.bfloat16), np.array([True, False]), np.array([1 + 2j]),
    np.zeros(HEAVY + 8, np.uint8), np.zeros((HEAVY, 2), np.uint8)[:, 0],
], ids=lambda a: f"{a.dtype}{a.shape}")  # fmt: skip
async def test_shape_and_dtype_travel(array):
    async with groups(2) as (a, b):
        array.flags.writeable = False
        sent = a.send(array, dst=1)
        got = await b.recv(src=0)
        await sent
        np.testing.assert_array_equal(got, array)
        assert got.shape == array.shape and got.dtype == array.dtype.newbyteorder("=")
        assert got.flags.writeable


async def test_both_send_first():
    async with groups(2) as (a, b):
        await asyncio.gather(a.send(np.array([1.0]), 1), b.send(np.array([2.0]), 0))
        assert (await a.recv(1)) == 2.0 and (await b.recv(0)) == 1.0


async def test_order_for_each_pair_and_tag():
    async with groups(3, timeout=20) as (a, b, c):
        a_post = a._messages._post
        a_post._mail._random = __import__("random").Random(1)  # letters overtake each other
        sends = [a.send(np.array(i), 2, tag=i % 2) for i in range(20)]
        sends += [b.send(np.array(100 + i), 2) for i in range(10)]
        odd = [await c.recv(0, tag=1) for _ in range(10)]
        from_b = await asyncio.gather(*(c.recv(1) for _ in range(10)))
        even = [await c.recv(0, tag=0) for _ in range(10)]
        await asyncio.gather(*sends)
        assert [int(each) for each in odd] == list(range(1, 20, 2))
        assert [int(each) for each in even] == list(range(0, 20, 2))
        assert [int(each) for each in from_b] == list(range(100, 110))


async def test_to_itself():
    async with groups(1) as (a,):
        array = np.arange(3.0)
        await a.send(array, 0, tag=5)
        array[:] = 0
        np.testing.assert_array_equal(await a.recv(0, tag=5), [0, 1, 2])


async def test_a_late_recv_takes_nothing_and_the_group_lives_on():
    async with groups(2) as (a, b):
        with pytest.raises(DeadlineExceeded, match=r"rank 0 \(trainer-0\) sent nothing with tag 3"):
            await b.recv(0, tag=3, timeout=0.02)
        await a.send(np.array(1), 1, tag=3)
        assert await b.recv(0, tag=3) == 1
        assert a.error is None and b.error is None


async def test_a_cancelled_recv_takes_nothing():
    async with groups(2) as (a, b):
        first, second = b.recv(0), b.recv(0)
        await asyncio.sleep(0)
        assert first.cancel()
        await a.send(np.array(1), 1)
        await a.send(np.array(2), 1)
        assert await second == 1 and await b.recv(0) == 2
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_cancelled_while_the_letter_comes():
    async with groups(2) as (a, b):
        for turns in range(12):  # wherever it is just then
            recv = b.recv(0)
            sent = a.send(np.array(turns), 1)
            for _ in range(turns):
                await asyncio.sleep(0)
            recv.cancel()
            await sent
            got = recv.result() if not recv.cancelled() else await b.recv(0)
            assert got == turns


async def test_a_cancelled_send_arrives():
    async with groups(2) as (a, b):
        assert a.send(np.array(1), 1).cancel()
        await a.send(np.array(2), 1)
        assert (await b.recv(0), await b.recv(0)) == (1, 2)


async def test_a_send_that_does_not_arrive_ends_the_group():
    async with groups(2) as made:
        a, b = made
        waiting = b.recv(0)
        release = made.mail.hold(lambda source, to, key: True)
        with pytest.raises(DeadlineExceeded):
            await a.send(np.array(1), 1, timeout=0.02)
        release()
        with pytest.raises(DeadlineExceeded):
            await waiting
        with pytest.raises(DeadlineExceeded):
            await a.barrier()
        with pytest.raises(DeadlineExceeded):
            await b.recv(0)


async def test_what_waits_ends_with_the_group():
    async with groups(2) as (a, b):
        waiting = [b.recv(0), b.recv(0, tag=1), b.recv(1)]
        await asyncio.sleep(0.01)
        b.abort(PeerLost("gone"))
        for each in waiting:
            with pytest.raises(PeerLost, match="gone"):
                await each
        mine = a.recv(1)
        await asyncio.sleep(0.01)
        await a.close()
        with pytest.raises(ContextClosed):
            await mine
        with pytest.raises(ContextClosed):
            await a.send(np.array(1), 1)


async def test_mistakes():
    async with groups(2) as (a, b):
        for bad in (-1, 2):
            with pytest.raises(ArgumentError, match="ranks 0 to 1"):
                a.send(np.array(1), bad)
            with pytest.raises(ArgumentError, match="ranks 0 to 1"):
                a.recv(bad)
        with pytest.raises(ArgumentError, match="tag"):
            a.send(np.array(1), 1, tag=-1)
        with pytest.raises(ArgumentError, match="tag='a'"):
            a.recv(1, tag="a")
        with pytest.raises(ArgumentError, match="rank 'b'"):
            a.send(np.array(1), "b")
        with pytest.raises(ArgumentError, match="not an array"):
            a.send([1, 2], 1)
        with pytest.raises(ArgumentError, match="timeout"):
            a.recv(1, timeout=-1)
        await asyncio.gather(a.barrier(), b.barrier())
        assert a.last_completed == 1, "what is wrong with a send is no operation of the group"


async def test_from_a_device():
    with strict_devices("gpu-0") as (device,):
        async with groups(2) as (a, b):
            sent = a.send(device.to_device(np.arange(6.0).reshape(2, 3)).T, 1)
            np.testing.assert_array_equal(await b.recv(0), np.arange(6.0).reshape(2, 3).T)
            await sent
