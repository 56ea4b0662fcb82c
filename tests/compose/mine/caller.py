"""Calls both workers, loses one in the middle of a call, and calls it again when it has come back."""

import asyncio
import sys

import numpy as np
from functions import add, name, sleep

import psframework as psf


async def main():
    async with psf.connect(name="caller") as cluster:
        print("names", await cluster.rpc_all(["worker-0", "worker-1"], name), flush=True)
        big = np.arange(3_000_000, dtype=np.float32)
        assert (await cluster.rpc_async("worker-1", add, (big, big)) == 2 * big).all()
        pending = cluster.rpc_async("worker-1", sleep, (300,), timeout=300)
        await cluster.rpc_async("worker-1", add, (1, 1))
        print("pending", flush=True)
        try:
            await pending
        except psf.PeerLost as lost:
            print("lost", lost.peer, lost.may_have_run, flush=True)
        assert await cluster.rpc_async("worker-0", add, (1, 2)) == 3
        sys.stdin.readline()  # until it is up again
        for _ in range(100):
            try:
                print("again", await cluster.rpc_async("worker-1", add, (1, 2)), flush=True)
                return
            except psf.PeerLost:
                await asyncio.sleep(0.1)


asyncio.run(main())
