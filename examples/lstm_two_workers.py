"""A language model over three processes: embedding and decoder each on a worker, the LSTM between them here.

The language is made up: sentences such as "the small dogs that the girl sees run often ." whose verbs agree
with their nouns, also across a clause. Words alone (their unigram entropy) tell little of the next one; what
nobody can know, for the grammar leaves it open, is the entropy of the language.
Forward, backward and step go through all three processes: `cluster.dist_autograd()`, `DistributedOptimizer`.

python examples/lstm_two_workers.py
python examples/lstm_two_workers.py --steps 1000 --width 64 --picture lstm.svg
"""

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

import numpy as np

import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim

NOUNS = [("dog", "dogs"), ("girl", "girls"), ("king", "kings"), ("fox", "foxes"), ("boat", "boats")]
VERBS = [("sees", "see"), ("hears", "hear"), ("follows", "follow"), ("likes", "like"), ("finds", "find")]
ADJECTIVES = ["small", "old", "red", "quiet", "proud"]
ADVERBS = ["often", "never", "again", "today"]
SYMBOLS = sorted({*chain(*NOUNS, *VERBS), *ADJECTIVES, *ADVERBS, "the", "that", "."})
NUMBERS = {word: number for number, word in enumerate(SYMBOLS)}


@psf.remote
class Embedding(nn.Module):
    """Words -> features."""

    def __init__(self, symbols: int, width: int):
        self.table = nn.Embedding(symbols, width)

    def forward(self, ids: np.ndarray) -> psf.Tensor:
        """(batch, time) -> (batch, time, width)."""
        return self.table(ids)


@psf.remote
class Decoder(nn.Module):
    """Features -> scores of the next word."""

    def __init__(self, width: int, symbols: int):
        self.head = nn.Linear(width, symbols)

    def forward(self, hidden: psf.Tensor) -> psf.Tensor:
        """(batch, time, width) -> (batch, time, symbols)."""
        return self.head(hidden)


def sentence(rng: np.random.Generator) -> Iterator[tuple[str, float]]:
    """Words, each with the probability that the grammar gives it after those before."""

    def phrase() -> Iterator[tuple[str, float]]:
        yield "the", 1.0
        chance = 1.0
        if rng.random() < 0.3:
            yield ADJECTIVES[rng.integers(5)], 0.3 / 5
        else:
            chance = 0.7
        yield NOUNS[rng.integers(5)][number], chance / 10

    number = outer = int(rng.integers(2))
    yield from phrase()
    chance = 0.7
    if rng.random() < 0.3:
        yield "that", 0.3
        number = int(rng.integers(2))
        yield from phrase()
        yield VERBS[rng.integers(5)][number], 1 / 5
        chance = 1.0
    yield VERBS[rng.integers(5)][outer], chance / 5
    chance = 1.0
    if rng.random() < 0.5:
        yield ADVERBS[rng.integers(4)], 0.5 / 4
    else:
        chance = 0.5
    yield ".", chance


def language(seed: int, length: int) -> tuple[np.ndarray, float]:
    """`length` words as numbers, and how many nats each tells on average, to one who knows the grammar."""
    rng = np.random.default_rng(seed)
    words = list(islice(chain.from_iterable(sentence(rng) for _ in range(length)), length))
    ids = np.array([NUMBERS[word] for word, _ in words])
    return ids, -float(np.mean(np.log([chance for _, chance in words])))


def unigram_entropy(ids: np.ndarray) -> float:
    """Nats a word, to one who knows how frequent each is."""
    shares = np.array(list(Counter(ids.tolist()).values())) / len(ids)
    return -float((shares * np.log(shares)).sum())


def windows(ids: np.ndarray, context: int, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """(size, context + 1) words from random places, for ever."""
    while True:
        yield ids[rng.integers(0, len(ids) - context, (size, 1)) + np.arange(context + 1)]


class Model:
    """The three parts, wherever they are."""

    def __init__(self, cluster: psf.Cluster, width: int):
        self.embedding = cluster.remote("worker-0", Embedding, args=(len(SYMBOLS), width))
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.decoder = cluster.remote("worker-1", Decoder, args=(width, len(SYMBOLS)))

    async def loss(self, window: np.ndarray) -> psf.Tensor:
        """In nats a word, of predicting each word from those before."""
        features = await self.embedding.rpc_async().forward(window[:, :-1])
        hidden, _ = await psf.compute(self.lstm, features)
        scores = await self.decoder.rpc_async().forward(hidden)
        return F.cross_entropy(scores.reshape(-1, len(SYMBOLS)), window[:, 1:].reshape(-1))


async def train(cluster: psf.Cluster, ids: np.ndarray, args: argparse.Namespace) -> Model:
    """Learns from a text, and shows progress."""
    model = Model(cluster, args.width)
    optimizer = psf.DistributedOptimizer(optim.Adam(lr=args.lr), [model.embedding, model.lstm, model.decoder])
    begin, rng = time.perf_counter(), np.random.default_rng(args.seed)
    for step, window in zip(range(1, args.steps + 1), windows(ids, 24, args.batch, rng)):
        async with cluster.dist_autograd() as ctx:
            loss = await model.loss(window)
            if args.picture and step == 1:
                await ctx.draw(args.picture, names=model.lstm.named_parameters())
            await ctx.backward([loss])
            await optimizer.step(ctx, max_norm=1.0)
        if step % max(1, args.steps // 10) == 0:
            speed = step / (time.perf_counter() - begin)
            print(f"step {step}: loss {loss.item():.3f}, {speed:.0f} steps/s", flush=True)
    return model


async def main() -> None:
    """Starts two workers, trains, and measures on sentences that were never seen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=32, help="features of a word")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", help="where to draw the graph of the first step, as SVG")
    args = parser.parse_args()

    psf.manual_seed(args.seed)
    (text, _), (unseen, entropy) = language(args.seed, 50_000), language(args.seed + 1, 10_000)
    async with psf.local_cluster(workers=2) as local, psf.connect(local.address, name="trainer") as cluster:
        model = await train(cluster, text, args)
        with psf.no_grad():
            loss = await model.loss(unseen.reshape(-1, 25))
    print(f"unigram entropy {unigram_entropy(unseen):.3f} nats a word")
    print(f"model           {loss.item():.3f}")
    print(f"the language    {entropy:.3f}")


if __name__ == "__main__":
    asyncio.run(main())
