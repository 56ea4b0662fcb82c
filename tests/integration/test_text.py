"""The language models of `examples/text.py` learn a piece of the documentation by heart."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from psframework import nn, optim
from psframework.autograd import no_grad

ROOT = Path(__file__).parents[2]
PIECES, LENGTH, PROMPT = 16, 64, 8


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("text_example", ROOT / "examples" / "text.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pieces() -> list[str]:
    """The first pieces of the documentation that begin differently; a prompt tells which one is meant."""
    words = " ".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))).split()
    text = " ".join(words)  # tables have runs of spaces, after which anything may follow
    found: dict[str, str] = {}
    for start in range(0, len(text) - LENGTH, LENGTH + 1):
        found.setdefault(text[start : start + PROMPT], text[start : start + LENGTH + 1])
    return list(found.values())[:PIECES]


def knows(model: nn.Module, windows: np.ndarray) -> bool:
    """Whether each symbol after the prompt is the likeliest to follow those before it."""
    with no_grad():
        guesses = model(windows[:, :-1]).numpy().argmax(-1)
    return bool((guesses == windows[:, 1:])[:, PROMPT - 1 :].all())


@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 6)]])
@pytest.mark.parametrize(("kind", "lr"), [("lstm", 0.02), ("transformer", 0.004)])
def test_a_text_is_learnt_by_heart(example: ModuleType, kind: str, lr: float, seed: int) -> None:
    nn.manual_seed(seed)
    text = example.Text("".join(pieces()))
    windows = np.stack([text.encode(piece) for piece in pieces()])
    model = example.MODELS[kind](len(text.symbols), width=64, layers=2)
    optimizer = optim.Adam(model.parameters(), lr=optim.schedule.Cosine(lr, 250))
    losses: list[float] = []
    while len(losses) < 250 and not (losses and losses[-1] < 0.1 and knows(model, windows)):
        losses += [example.step(model, optimizer, windows) for _ in range(10)]
    # What cannot be known, the first symbols of a piece, keeps the loss above zero.
    assert losses[-1] < 0.1 < 3 < losses[0], losses
    written = example.write(model, windows[:, :PROMPT], LENGTH + 1 - PROMPT, LENGTH, 0.0, None)
    assert [text.decode(ids) for ids in written] == pieces()
