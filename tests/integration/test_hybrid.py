"""Dense layers under DDP on two ranks and an embedding on a third process are the same as one process."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np

import psframework.nn.functional as F
from psframework import nn, optim
from psframework.autograd import tensor
from psframework.cluster.process import child_environment

STEPS, BATCH, WORDS, WIDTH, CLASSES = 4, 6, 10, 3, 4

SCRIPT = """
import asyncio, functools, json, sys
import numpy as np
import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim

@psf.remote
class Table(nn.Module):
    def __init__(self, weight):
        self.rows = nn.Embedding(*weight.shape, dtype=weight.dtype)
        self.rows.weight.data[...] = weight
    def forward(self, words):
        return self.rows(words)
    def weight(self):
        return self.rows.weight.numpy()

@functools.cache
def one(shape):
    return Table(np.random.default_rng(0).normal(size=shape))

@psf.remote
def table(rows, width):
    return one((rows, width))

async def main():
    steps, batch, words, width, classes = json.loads(sys.argv[1])
    async with psf.connect() as cluster, await cluster.process_group() as group:
        remote = cluster.remote("worker-0", table, args=(words, width))
        dense = nn.Linear(width, classes, dtype=np.float64)
        dense.weight.data[...] = np.random.default_rng(1).normal(size=(classes, width))
        dense.bias.data[...] = 0
        ddp = await psf.DistributedDataParallel(dense, group)
        own = optim.SGD(dense.parameters(), lr=0.1)
        theirs = psf.DistributedOptimizer(optim.SGD(lr=0.1), [remote])
        rng = np.random.default_rng(2 + group.rank)
        for _ in range(steps):
            x, y = rng.integers(0, words, batch), rng.integers(0, classes, batch)
            async with cluster.dist_autograd() as ctx:
                rows = await remote.rpc_async().forward(x)
                features = psf.tensor(rows.data, requires_grad=True)
                loss = F.cross_entropy(ddp(features), y)
                await ddp.backward(loss)
                await ctx.backward([(rows * features.grad).sum()])
                await group.barrier()  # nobody steps the table before all have looked up their rows
                await theirs.step(ctx)
            own.step()
            own.zero_grad()
            await group.barrier()
        weight = await remote.rpc_async().weight()
        print(json.dumps([dense.weight.numpy().tolist(), dense.bias.numpy().tolist(), weight.tolist()]))

if __name__ == "__main__":
    asyncio.run(main())
"""


def in_one_process() -> list[np.ndarray]:
    """The mean of both ranks' gradients for the dense layer; both of them for the table."""
    table = tensor(np.random.default_rng(0).normal(size=(WORDS, WIDTH)), requires_grad=True)
    dense = nn.Linear(WIDTH, CLASSES, dtype=np.float64)
    dense.weight.data[...] = np.random.default_rng(1).normal(size=(CLASSES, WIDTH))
    dense.bias.data[...] = 0
    optimizer = optim.SGD([table, *dense.parameters()], lr=0.1)
    ranks = [np.random.default_rng(2), np.random.default_rng(3)]
    for _ in range(STEPS):
        optimizer.zero_grad()
        for rng in ranks:
            x, y = rng.integers(0, WORDS, BATCH), rng.integers(0, CLASSES, BATCH)
            F.cross_entropy(dense(table[x]), y).backward()
        for parameter in dense.parameters():
            parameter.grad /= len(ranks)
        optimizer.step()
    return [dense.weight.numpy(), dense.bias.numpy(), table.numpy()]


async def test_ranks_and_owner_together_are_one_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "psframework.cli.app", "run", "--nproc-per-node=2", "--workers=1"]
    sizes = json.dumps([STEPS, BATCH, WORDS, WIDTH, CLASSES])
    process = await asyncio.create_subprocess_exec(
        *command, "train.py", sizes, cwd=tmp_path, env=child_environment(),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(55):
            output = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output
    printed = [line[4:] for line in output.splitlines() if line.startswith(("[0] [[", "[1] [["))]
    assert len(printed) == 2 and printed[0] == printed[1], "both ranks have the same, to the bit"
    for found, expected in zip(json.loads(printed[0]), in_one_process()):
        np.testing.assert_allclose(np.array(found), expected, rtol=0, atol=1e-12)
