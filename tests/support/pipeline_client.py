"""A program that trains on a pipeline until it is killed; tests start it as a process of its own."""

import asyncio
import sys

import psframework as psf
import psframework.nn.functional as F
from psframework import optim
from tests.support.pipeline_faults import Fatal
from tests.support.pipeline_models import data


async def main(address: str, driver: str, trigger: str) -> None:
    """Opens it, steps, says so, and goes on stepping."""
    async with psf.connect(address) as cluster:
        pipe = await cluster.pipeline(
            [(Fatal, (0, False, trigger)), (Fatal, (1, True, trigger))],
            loss=F.cross_entropy,
            optimizer=optim.SGD(lr=0.1),
            driver=driver,
        )
        await pipe.step(*data(8))
        print("stepped", flush=True)
        while True:
            await pipe.step(*data(8))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
