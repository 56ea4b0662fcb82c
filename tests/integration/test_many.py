"""Thirty-two trainers on one machine: all get in, train in step, and come out with the same parameters."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np

import psframework as psf
from psframework.testing.cluster import program

TRAINERS, PROCESSES, STEPS = 32, 4, 3
SECONDS = 30.0  # 15 on two cores that ten others use too

TRAINER = """
    import asyncio, sys
    import numpy as np
    import psframework as psf
    from psframework import nn, optim

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(np.zeros((300, 1000), np.float32))   # more than one partition
            self.bias = nn.Parameter(np.ones(7, np.float32))

    async def train(address, number, trainers, steps):
        async with psf.connect(address, name=f"trainer-{number}") as cluster:
            model = Net()
            policy = psf.BSP(trainers=trainers)
            ps = await cluster.parameter_server(model, optimizer=optim.SGD(lr=1.0), consistency=policy)
            for step in range(steps):
                model.table.grad = np.full((300, 1000), trainers * (number + step), np.float32)
                model.bias.grad = np.arange(7, dtype=np.float32) * number
                await ps.push_pull()
            table, bias = model.table.data, model.bias.data
            assert (table == table.flat[0]).all()
            print("ended at", ps.step, table.flat[0], *bias, flush=True)
            await cluster.barrier("all-have-read", trainers)

    async def main():
        address, first, count, trainers, steps = sys.argv[1], *map(int, sys.argv[2:])
        async with asyncio.TaskGroup() as group:
            for number in range(first, first + count):
                group.create_task(train(address, number, trainers, steps))

    asyncio.run(main())
"""


async def test_thirty_two_trainers_on_one_machine(tmp_path: Path) -> None:
    each = TRAINERS // PROCESSES
    began = time.monotonic()
    async with psf.local_cluster(parameter_servers=2) as local, AsyncExitStack() as stack:
        running = []
        for first in range(0, TRAINERS, each):
            arguments = [local.address, *map(str, (first, each, TRAINERS, STEPS))]
            trainers = program(tmp_path, f"trainers_{first}", TRAINER, arguments)
            running.append(await stack.enter_async_context(trainers))
        codes = await asyncio.gather(*(one.end(SECONDS) for one in running))
        elapsed = time.monotonic() - began
        output = [line for one in running for line in one.process.output]
        assert codes == [0] * PROCESSES, output
        ended = [line for line in output if line.startswith("ended at")]
        assert len(ended) == TRAINERS
        table = -float(sum(n + step for n in range(TRAINERS) for step in range(STEPS)))
        mean = STEPS * sum(range(TRAINERS)) / TRAINERS  # of the numbers, over all steps; exact in float32
        bias = np.float32(1) - np.arange(7, dtype=np.float32) * np.float32(mean)
        assert set(ended) == {" ".join(["ended at", str(STEPS), str(table), *map(str, bias)])}
        # Nobody was fenced on the way, and nobody is left.
        async with psf.connect(local.address) as cluster:
            assert len(cluster.members(role="trainer")) == 1
            assert len(cluster.members(role="parameter-server")) == 2
    assert elapsed < SECONDS, f"{elapsed:.1f} s"
