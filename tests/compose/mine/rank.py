"""One rank of two; it trains until the other one is gone, and then alone."""

import asyncio
import os

import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim


async def step(ddp, optimizer, batch):
    loss = F.cross_entropy(ddp(batch[0]), batch[1])
    await ddp.backward(loss)
    optimizer.step()
    optimizer.zero_grad()


async def main():
    rank, digits = int(os.environ["PSF_TEST_RANK"]), psf.data.digits()
    async with psf.connect(name=f"rank-{rank}") as cluster:
        group = await cluster.process_group("apart", 2, rank=rank)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        ddp = await psf.DistributedDataParallel(model, group)
        optimizer = optim.Adam(model.parameters(), lr=1e-2)
        batch = digits.x_train[rank::2], digits.y_train[rank::2]
        for _ in range(40):
            await step(ddp, optimizer, batch)
        right = (model(digits.x_test).numpy().argmax(1) == digits.y_test).mean()
        weights = await group.all_gather(model[1].weight.data)
        print("trained", group.transport, right > 0.9, (weights[0] == weights[1]).all(), flush=True)
        try:
            while True:
                await step(ddp, optimizer, batch)
        except psf.PeerLost as lost:
            print("lost", lost.peer, lost.rank, flush=True)
        alone = await group.shrink()
        await step(await psf.DistributedDataParallel(model, alone), optimizer, batch)
        print("alone", alone.size, flush=True)


asyncio.run(main())
