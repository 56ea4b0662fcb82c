"""A character-level transformer over three processes, one block in each; activations go from stage to stage.

The text is the help that comes with Python. The table of symbols is needed at both ends, to read and to
write: it is one parameter, whose gradients from both ends are added up.

python examples/pipeline.py                                      # starts three stages of its own
python examples/pipeline.py --steps 1000 --schedule zb-h1 --picture run.svg

cd examples; psf up --stages 3 --import pipeline                 # or a cluster that is there,
PSF_COORDINATOR=127.0.0.1:7070 python examples/pipeline.py       # at the address that this printed
"""

import argparse
import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from pydoc_data.topics import topics

import numpy as np

import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim

HEADS = 4
TIED = ("0.embedding.weight", "2.head.weight")


def block(width: int) -> nn.TransformerEncoderLayer:
    """Attention to what came before, then a network for each place."""
    return nn.TransformerEncoderLayer(
        width, HEADS, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )


@psf.remote
class First(nn.Module):
    """The first stage: symbols -> features."""

    def __init__(self, symbols: int, width: int) -> None:
        self.embedding = nn.Embedding(symbols, width)
        self.places = nn.SinusoidalPositionalEncoding(width, batch_first=True)
        self.block = block(width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)

    def forward(self, ids: psf.Tensor) -> psf.Tensor:
        """(batch, time) -> (batch, time, width)."""
        features = self.embedding(ids) * self.embedding.embedding_dim**0.5
        return self.block(self.places(features), is_causal=True)


@psf.remote
class Middle(nn.Module):
    """The stages between."""

    def __init__(self, width: int) -> None:
        self.block = block(width)

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        """(batch, time, width), both."""
        return self.block(x, is_causal=True)


@psf.remote
class Last(nn.Module):
    """The last stage: features -> scores of the next symbol at each place."""

    def __init__(self, symbols: int, width: int) -> None:
        self.block = block(width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        """(batch, time, width) -> (batch, time, symbols)."""
        return self.head(self.norm(self.block(x, is_causal=True)))


@psf.remote
def loss(scores: psf.Tensor, following: psf.Tensor) -> psf.Tensor:
    """Nats a symbol, the mean over a micro-batch."""
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), following.reshape(-1))


class Text:
    """A text as numbers."""

    def __init__(self, text: str) -> None:
        self.symbols, self.ids = np.unique(_codes(text), return_inverse=True)

    def encode(self, text: str) -> np.ndarray:
        """Characters that the text does not have become another one."""
        return np.searchsorted(self.symbols[:-1], _codes(text))

    def decode(self, ids: np.ndarray) -> str:
        """Numbers as characters."""
        return self.symbols[ids].tobytes().decode("utf-32-le")

    def batches(self, context: int, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Windows from random places, (size, context + 1), for ever."""
        while True:
            starts = rng.integers(0, len(self.ids) - context, (size, 1))
            yield self.ids[starts + np.arange(context + 1)]


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


async def train(pipe: psf.pipeline.Pipeline, text: Text, args: argparse.Namespace) -> None:
    """Steps towards predicting each symbol from those before; tells how it goes."""
    start, rng = time.perf_counter(), np.random.default_rng(args.seed)
    for i, window in zip(range(1, args.steps + 1), text.batches(args.context, args.batch, rng)):
        nats = await pipe.step(window[:, :-1], window[:, 1:])
        if i % max(1, args.steps // 10) == 0:
            speed = i * args.batch * args.context / (time.perf_counter() - start)
            print(f"step {i}: loss {nats:.3f}, {speed:.0f} characters/s", flush=True)


async def write(
    pipe: psf.pipeline.Pipeline, ids: np.ndarray, args: argparse.Namespace, seed: int
) -> np.ndarray:
    """`ids` (time,) and more symbols; temperature 0 takes the likeliest each time."""
    rng = np.random.default_rng(seed)
    for _ in range(args.length):
        scores = (await pipe.infer(ids[None, -args.context :]))[0, -1]
        if args.temperature:
            scores = scores / args.temperature + rng.gumbel(size=scores.shape)
        ids = np.append(ids, scores.argmax())
    return ids


async def run(cluster: psf.Cluster, args: argparse.Namespace) -> None:
    """Places the stages, trains them, and shows what they write."""
    text = await psf.compute(Text, "\n".join(topics.values()))
    symbols = len(text.symbols)
    stages = [(First, (symbols, args.width)), (Middle, (args.width,)), (Last, (symbols, args.width))]
    async with await cluster.pipeline(
        stages,
        loss=loss,
        optimizer=optim.AdamW(lr=args.lr),
        schedule=args.schedule,
        microbatches=args.microbatches,
        ties=[TIED],
        max_norm=1.0,
    ) as pipe:
        await train(pipe, text, args)
        if args.picture:
            pipe.timeline(args.picture)
        prompt = text.encode(args.prompt)
        written = await asyncio.gather(*(write(pipe, prompt, args, seed) for seed in range(args.samples)))
        for number, ids in enumerate(written):
            print(f"--- {number}\n{text.decode(ids)}")


async def main() -> None:
    """Finds a cluster, or starts one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=64, help="features of a place")
    parser.add_argument("--context", type=int, default=64, help="symbols that a prediction may look back on")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--schedule", choices=["gpipe", "1f1b", "zb-h1"], default="1f1b")
    parser.add_argument("--microbatches", type=int, default=4, help="into how many a batch is cut")
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--length", type=int, default=120, help="symbols to write")
    parser.add_argument("--samples", type=int, default=2, help="texts that are written at the same time")
    parser.add_argument("--temperature", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", help="where to draw the last step, as SVG")
    args = parser.parse_args()

    psf.manual_seed(args.seed)
    own = contextlib.nullcontext() if "PSF_COORDINATOR" in os.environ else psf.local_cluster(stages=3)
    async with own as local, psf.connect(local and local.address) as cluster:
        await run(cluster, args)


if __name__ == "__main__":
    asyncio.run(main())
