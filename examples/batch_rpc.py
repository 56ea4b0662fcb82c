"""Batched calls: many clients each send one image, the server learns from, and predicts, many at once.

A forward of 64 rows costs little more than one of a single row. `psf.batched` gathers the calls that come
within 2 ms, from whichever client, and runs the function once for all of them.

python examples/batch_rpc.py
python examples/batch_rpc.py --clients 4 --in-flight 16
"""

import argparse
import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim

SERVER = "worker-0"
SIZE, WAIT = 64, 0.002

Example = tuple[np.ndarray, int]


class Reader(nn.Module):
    """A small transformer that reads an image row by row: images (n, 8, 8) -> scores (n, 10)."""

    def __init__(self, width: int = 32, layers: int = 4):
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.embedding = nn.Linear(8, width)
        self.places = nn.SinusoidalPositionalEncoding(width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(8 * width, 10)

    def forward(self, images: np.ndarray) -> psf.Tensor:
        """Scores of the ten digits."""
        rows = self.encoder(self.places(self.embedding(images)))
        return self.head(rows.reshape(len(images), -1))


model = Reader()
optimizer = optim.Adam(model.parameters(), lr=3e-3)  # every process makes them; the server's are used
sizes: list[int] = []  # of the server's batches


def classify(images: Sequence[np.ndarray]) -> np.ndarray:
    """The digits in images."""
    sizes.append(len(images))
    with psf.no_grad():
        return model(np.stack(images)).numpy().argmax(1)


@psf.remote
def predict_alone(image: np.ndarray) -> int:
    """The digit in one image."""
    return classify([image])[0]


@psf.remote
@psf.batched(max_size=SIZE, max_wait=WAIT)
def predict(images: Sequence[np.ndarray]) -> np.ndarray:
    """The same, of all images that callers ask about at this moment."""
    return classify(images)


@psf.remote
@psf.batched(max_size=SIZE, max_wait=WAIT)
def update(examples: Sequence[Example]) -> list[float]:
    """One step of the optimizer on the examples of all callers; each gets the loss on all of them."""
    sizes.append(len(examples))
    loss = F.cross_entropy(model(np.stack([x for x, _ in examples])), np.array([y for _, y in examples]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return [loss.item()] * len(examples)


@psf.remote
def batches() -> list[int]:
    """How many calls each batch had, since this was last asked."""
    found = sizes.copy()
    sizes.clear()
    return found


@psf.remote
async def ask(fn: Callable[..., Any], items: Sequence[Any], in_flight: int) -> list[Any]:
    """What a client does: calls `fn` of the server with each item, `in_flight` calls at a time."""
    cluster, results, left = psf.current_cluster(), [None] * len(items), deque(enumerate(items))

    async def some() -> None:
        while left:
            index, item = left.popleft()
            results[index] = await cluster.rpc_async(SERVER, fn, args=(item,))

    await asyncio.gather(*(some() for _ in range(in_flight)))
    return results


class Clients:
    """Processes that share the work of calling the server."""

    def __init__(self, cluster: psf.Cluster, count: int, in_flight: int):
        self.cluster, self.count, self.in_flight = cluster, count, in_flight

    async def run(self, fn: Callable[..., Any], items: Sequence[Any]) -> tuple[list[Any], float]:
        """Calls `fn` with each item: the results in order, and how many calls that was a second."""
        begin, results = time.perf_counter(), [None] * len(items)
        calls = [
            self.cluster.rpc_async(f"worker-{1 + i}", ask, args=(fn, items[i :: self.count], self.in_flight))
            for i in range(self.count)
        ]
        for i, share in enumerate(await asyncio.gather(*calls)):
            results[i :: self.count] = share
        rate = len(items) / (time.perf_counter() - begin)
        run = await self.cluster.rpc_async(SERVER, batches)
        print(f"{fn.__name__:14}{sum(run):6} calls in {len(run):5} batches, {rate:6.0f} calls/s", flush=True)
        return results, rate


async def main() -> None:
    """Starts a server and clients, learns, and compares calls one by one with batched ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=2, help="processes that call the server")
    parser.add_argument("--in-flight", type=int, default=64, help="calls that each has under way")
    parser.add_argument("--epochs", type=int, default=5, help="how often each training image is sent")
    args = parser.parse_args()

    digits = psf.data.digits()
    train, test = (images.reshape(-1, 8, 8) for images in (digits.x_train, digits.x_test))
    examples = list(zip(train, digits.y_train.tolist()))
    async with psf.local_cluster(workers=1 + args.clients) as local, psf.connect(local.address) as cluster:
        clients = Clients(cluster, args.clients, args.in_flight)
        losses, _ = await clients.run(update, examples * args.epochs)
        print(f"loss {np.mean(losses[:500]):.3f} -> {np.mean(losses[-500:]):.3f}", flush=True)
        _, alone = await clients.run(predict_alone, list(train))
        found, batched = await clients.run(predict, list(test) * 15)
        print(f"batched: {batched / alone:.1f} times as many calls")
        print(f"accuracy {np.mean(found == np.tile(digits.y_test, 15)):.3f}")


if __name__ == "__main__":
    asyncio.run(main())
