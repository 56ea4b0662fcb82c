"""Data parallelism with a remote embedding: the table stays with its owner, dense layers are on every rank.

Trainers classify bags of words. A step looks rows up on `worker-0`, which holds the table, computes the dense
layers under DistributedDataParallel, and sends gradients back to the table by distributed autograd:

     rank-0                         worker-0                        rank-1
     words ----------------------> embedding <---------------------- words
     dense layers <--- rows ----                ---- rows ---> dense layers
          \\________________ mean of their gradients ________________/

psf run --nproc-per-node 2 --workers 1 examples/hybrid.py
"""

import argparse
import asyncio
import functools

import numpy as np

import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim

WORDS, CLASSES, BAG, WIDTH = 2000, 8, 10, 16
OWNER = "worker-0"


@psf.remote
class Embedding(nn.Module):
    """Bags of words -> the mean of their rows."""

    def __init__(self) -> None:
        self.table = nn.EmbeddingBag(WORDS, WIDTH)

    def forward(self, words: np.ndarray) -> psf.Tensor:
        """(batch, words) -> (batch, width)."""
        return self.table(words)


@functools.cache
def table() -> Embedding:
    """The one of this process."""
    psf.manual_seed(0)
    return Embedding()


@psf.remote
def embedding() -> Embedding:
    """What trainers refer to: the owner's table, the same for all."""
    return table()


def sample(rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Bags, and the class that most words of each belong to; the others are from anywhere."""
    label = rng.integers(0, CLASSES, batch)
    own = rng.integers(0, WORDS // CLASSES, (batch, BAG)) * CLASSES + label[:, None]
    return np.where(rng.random((batch, BAG)) < 0.6, own, rng.integers(0, WORDS, (batch, BAG))), label


class Trainer:
    """One rank: the dense layers, a reference to the table, and an optimizer for each."""

    def __init__(self, cluster: psf.Cluster, group: psf.ProcessGroup, lr: float):
        self._cluster, self._group, self._lr = cluster, group, lr
        self._embedding = cluster.remote(OWNER, embedding)
        self._dense = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    async def open(self) -> None:
        """All ranks begin with the same dense layers."""
        self._ddp = await psf.DistributedDataParallel(self._dense, self._group)
        self._dense_optimizer = optim.Adam(self._dense.parameters(), lr=self._lr)
        self._embedding_optimizer = psf.DistributedOptimizer(
            optim.Adagrad(lr=self._lr * 10), [self._embedding]
        )

    async def step(self, words: np.ndarray, label: np.ndarray) -> float:
        """One step of all ranks; returns the mean loss over them."""
        async with self._cluster.dist_autograd() as ctx:
            rows = await self._embedding.rpc_async().forward(words)
            features = psf.tensor(rows.data, requires_grad=True)  # here the dense part begins
            loss = F.cross_entropy(self._ddp(features), label)
            await self._ddp.backward(loss)  # as far as `features`, averaging the dense gradients on the way
            await ctx.backward([(rows * features.grad).sum()])  # and on from there, to the owner of the table
            await self._embedding_optimizer.step(ctx)
        self._dense_optimizer.step()
        self._dense_optimizer.zero_grad()
        return float(await self._group.all_reduce(np.array(loss.item()), psf.ReduceOp.AVG))

    async def accuracy(self, words: np.ndarray, label: np.ndarray) -> float:
        """Share of bags that are classified rightly."""
        with psf.no_grad():
            scores = self._dense(await self._embedding.rpc_async().forward(words))
        return float((scores.numpy().argmax(1) == label).mean())


async def main() -> None:
    """Joins, trains, and measures on bags that were never seen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="bags of a step on each rank")
    parser.add_argument(
        "--lr", type=float, default=0.01, help="of the dense layers; the table has ten times that"
    )
    args = parser.parse_args()

    async with psf.connect() as cluster, await cluster.process_group() as group:
        rng = np.random.default_rng(group.rank)
        trainer = Trainer(cluster, group, args.lr)
        await trainer.open()
        for number in range(1, args.steps + 1):
            loss = await trainer.step(*sample(rng, args.batch))
            if group.rank == 0 and number % max(1, args.steps // 5) == 0:
                print(f"step {number}: loss {loss:.3f}", flush=True)
        if group.rank == 0:
            print(f"accuracy {await trainer.accuracy(*sample(np.random.default_rng(99), 1000)):.3f}")


if __name__ == "__main__":
    asyncio.run(main())
