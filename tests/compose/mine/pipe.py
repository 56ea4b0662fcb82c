"""Trains a model in stages and its twin in this process until stage-1 is gone, and a few steps more."""

import asyncio
import sys

import numpy as np
from stages import Head, Hidden

import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim

FEW = 5


async def step(pipe, twin, optimizer, x, y):
    loss = F.cross_entropy(twin(psf.tensor(x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert abs(await pipe.step(x, y) - float(loss.data)) < 1e-12


async def train(cluster, pipe):
    digits, twin = psf.data.digits(), nn.Sequential(Hidden(), Head())
    x, y = digits.x_train.reshape(-1, 64).astype(np.float64), digits.y_train
    twin.load_state_dict(await pipe.state_dict())
    optimizer = optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(FEW):
        await step(pipe, twin, optimizer, x, y)
    print("trained", flush=True)
    while any(member.name == "stage-1" for member in cluster.members()):
        await step(pipe, twin, optimizer, x, y)
    for _ in range(FEW):
        await step(pipe, twin, optimizer, x, y)
    state = await pipe.state_dict()
    print("equal", all(np.abs(state[name] - own).max() < 1e-12 for name, own in twin.state_dict().items()))


async def main():
    options = {"optimizer": optim.SGD(lr=0.1), "microbatches": 4, "driver": sys.argv[1]}
    async with psf.connect() as cluster:
        async with await cluster.pipeline(
            [(Hidden,), psf.pipeline.Stage(Head)], loss=F.cross_entropy, **options
        ) as pipe:
            await train(cluster, pipe)


asyncio.run(main())
