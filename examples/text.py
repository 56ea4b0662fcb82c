"""A character-level language model of a text: a small transformer or LSTM learns to go on writing it.

python examples/text.py                                    # psframework's documentation, by a transformer
python examples/text.py --model lstm --text shakespeare.txt --steps 2000 --prompt "To be"
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim

DOCS = Path(__file__).parents[1] / "docs"


class LSTM(nn.Module):
    """Symbols -> scores of the next symbol at each place, by recurrent layers."""

    def __init__(self, symbols: int, width: int = 128, layers: int = 2):
        self.embedding = nn.Embedding(symbols, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, symbols)

    def forward(self, ids: Any) -> psf.Tensor:
        """(batch, time) -> (batch, time, symbols)."""
        hidden, _ = self.lstm(self.embedding(ids))
        return self.head(hidden)


class Transformer(nn.Module):
    """The same by attention to what came before."""

    def __init__(self, symbols: int, width: int = 128, layers: int = 2, heads: int = 4):
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.embedding = nn.Embedding(symbols, width)
        self.places = nn.SinusoidalPositionalEncoding(width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width))
        self.head = nn.Linear(width, symbols)

    def forward(self, ids: Any) -> psf.Tensor:
        """(batch, time) -> (batch, time, symbols)."""
        return self.head(self.encoder(self.places(self.embedding(ids)), is_causal=True))


MODELS: dict[str, Any] = {"lstm": LSTM, "transformer": Transformer}


class Text:
    """A text as numbers."""

    def __init__(self, text: str):
        self.symbols = sorted(set(text))
        self._numbers = {symbol: i for i, symbol in enumerate(self.symbols)}
        self.ids = self.encode(text)

    def encode(self, text: str) -> np.ndarray:
        """Characters that the text does not have become its first one."""
        return np.array([self._numbers.get(symbol, 0) for symbol in text], np.int64)

    def decode(self, ids: np.ndarray) -> str:
        """Numbers as characters."""
        return "".join(self.symbols[i] for i in ids)

    def batches(self, context: int, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Windows from random places, (size, context + 1), for ever."""
        while True:
            starts = rng.integers(0, len(self.ids) - context, (size, 1))
            yield self.ids[starts + np.arange(context + 1)]


def step(model: nn.Module, optimizer: Any, window: np.ndarray) -> float:
    """One step towards predicting each symbol from those before; the loss in nats a symbol."""
    scores = model(window[:, :-1])
    loss = F.cross_entropy(scores.reshape(-1, scores.shape[-1]), window[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optim.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


@psf.no_grad()
def write(
    model: nn.Module, ids: np.ndarray, count: int, context: int, temperature: float, rng: np.random.Generator
) -> np.ndarray:
    """`ids` (batch, time) and `count` more symbols; temperature 0 takes the likeliest each time."""
    for _ in range(count):
        scores = model(ids[:, -context:]).numpy()[:, -1]
        if temperature:
            scores = scores / temperature + rng.gumbel(size=scores.shape)
        ids = np.concatenate([ids, scores.argmax(-1, keepdims=True)], axis=1)
    return ids


def main() -> None:
    """Trains, shows progress, and prints what the model writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="transformer")
    parser.add_argument("--text", type=Path, help="a file; by default the documentation")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--width", type=int, default=128, help="features of a place")
    parser.add_argument("--context", type=int, default=64, help="symbols that a prediction may look back on")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=200, help="symbols to write")
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--temperature", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    psf.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    files = [args.text] if args.text else sorted(DOCS.glob("*.md"))
    text = Text("".join(file.read_text() for file in files))
    model = MODELS[args.model](len(text.symbols), args.width)
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    print(f"{len(text.ids)} characters, {sum(p.size for p in model.parameters())} parameters")

    start = time.perf_counter()
    for i, window in zip(range(1, args.steps + 1), text.batches(args.context, args.batch, rng)):
        loss = step(model, optimizer, window)
        if i % max(1, args.steps // 10) == 0:
            speed = i * args.batch * args.context / (time.perf_counter() - start)
            print(f"step {i}: loss {loss:.3f}, {speed:.0f} characters/s", flush=True)
    prompt = text.encode(args.prompt)[None]
    print(text.decode(write(model, prompt, args.length, args.context, args.temperature, rng)[0]))


if __name__ == "__main__":
    main()
