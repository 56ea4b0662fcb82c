"""Stages for pipelines, in float64; stage services import this."""

import numpy as np

import psframework as psf
import psframework.nn.functional as F
from psframework import nn

WIDTH, CLASSES = 12, 5


@psf.remote
class Hidden(nn.Module):
    """A layer with an activation."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, dtype=np.float64)

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        return self.layer(x).tanh()


@psf.remote
class Head(nn.Module):
    """The last layer."""

    def __init__(self, width: int = WIDTH, classes: int = CLASSES) -> None:
        super().__init__()
        self.layer = nn.Linear(width, classes, dtype=np.float64)

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        return self.layer(x)


@psf.remote
class Dropped(nn.Module):
    """A layer that drops."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, dtype=np.float64)

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        return F.dropout(self.layer(x).tanh(), 0.5, self.training)


@psf.remote
class Faulty(nn.Module):
    """Fails on rows that hold a negative first number."""

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        if (x.data[:, 0] < 0).any():
            raise ValueError("a negative number")
        return x


def chain(stages: int) -> list[tuple[type[nn.Module], tuple[int, ...]]]:
    """So many stages."""
    return [(Hidden, ())] * (stages - 1) + [(Head, ())]  # type: ignore[list-item]


def data(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and classes."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, WIDTH)), rng.integers(0, CLASSES, rows)


@psf.remote
class Words(nn.Module):
    """An embedding of integers, and the integers, which later stages need."""

    def __init__(self, width: int = WIDTH, words: int = 20) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width, dtype=np.float64)

    def forward(self, ids: psf.Tensor) -> dict[str, object]:
        return {"x": self.table(ids), "ids": ids, "unused": self.table(ids).sum(-1), "scale": 2.0}


@psf.remote
class Middle(nn.Module):
    """Takes and gives several things; has no use for some."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, dtype=np.float64)
        self.frozen = nn.Linear(width, width, dtype=np.float64)
        self.frozen.requires_grad_(False)

    def forward(self, x: psf.Tensor, ids: psf.Tensor, unused: psf.Tensor, scale: float) -> object:
        hidden = self.frozen(self.layer(x)).tanh() * scale
        return hidden, [ids, None], (x, unused)


@psf.remote
class Plain(nn.Module):
    """Has no parameters."""

    def forward(self, hidden: psf.Tensor, ids: list[object], both: tuple[psf.Tensor, ...]) -> object:
        return hidden * both[0], ids[0]


@psf.remote
class Scores(nn.Module):
    """A score of each word at each place; the words' own numbers count too."""

    def __init__(self, width: int = WIDTH, words: int = 20) -> None:
        super().__init__()
        self.weight = nn.Parameter(np.random.default_rng(5).normal(size=(words, width)))

    def forward(self, x: psf.Tensor, ids: psf.Tensor | None = None) -> psf.Tensor:
        scores = x @ self.weight.T
        return scores if ids is None else scores + ids.astype(np.float64).reshape(*ids.shape, 1)


@psf.remote
class Table(nn.Module):
    """The table of words alone, for ties."""

    def __init__(self, width: int = WIDTH, words: int = 20) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width, dtype=np.float64)

    def forward(self, ids: psf.Tensor) -> psf.Tensor:
        return self.table(ids)


@psf.remote
@psf.pipeline.skippable(stash=("low", "lower"))
class Down(nn.Module):
    """Leaves two tensors for later."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, dtype=np.float64)

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        hidden = self.layer(x)
        psf.pipeline.stash("low", hidden.tanh())
        psf.pipeline.stash("lower", hidden * 2)
        return hidden


@psf.remote
@psf.pipeline.skippable(pop=("lower",))
class Across(nn.Module):
    """Takes one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, dtype=np.float64)

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        return self.layer(x).tanh() + psf.pipeline.pop("lower")


@psf.remote
@psf.pipeline.skippable(pop=("low",))
class Up(nn.Module):
    """Takes the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES, dtype=np.float64)

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        return self.layer(x + psf.pipeline.pop("low"))


@psf.remote
class Normed(nn.Module):
    """Batch norm, then dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, dtype=np.float64)
        self.norm = nn.BatchNorm1d(WIDTH, dtype=np.float64)

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        return F.dropout(self.norm(self.layer(x)), 0.5, self.training)


@psf.remote
class Small(nn.Module):
    """A layer with an activation, in float32."""

    def __init__(self, width: int = WIDTH, out: int = WIDTH) -> None:
        super().__init__()
        self.layer = nn.Linear(width, out)

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        return self.layer(x).tanh()


@psf.remote
class Rows(nn.Module):
    """A table whose gradients are rows of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, WIDTH, sparse=True, dtype=np.float64)

    def forward(self, ids: psf.Tensor, x: psf.Tensor | None = None) -> dict[str, psf.Tensor]:
        found = self.table(ids)
        return {"ids": ids, "x": found if x is None else (found + x).tanh()}


@psf.remote
def word_loss(outputs: psf.Tensor, targets: psf.Tensor) -> psf.Tensor:
    """Cross entropy at each place."""
    return F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))


@psf.remote
def square_loss(outputs: psf.Tensor, targets: psf.Tensor) -> psf.Tensor:
    """The mean square."""
    return ((outputs - targets) * (outputs - targets)).mean()


@psf.remote
class Wrapped(nn.Module):
    """Says nothing of what a module in it stashes."""

    def __init__(self) -> None:
        super().__init__()
        self.down = Down()

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        return self.down(x)


@psf.remote
class Doubled(nn.Module):
    """Has no parameters, and keeps the dtype."""

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        return x * 2


@psf.remote
def no_loss(outputs: psf.Tensor, targets: psf.Tensor) -> psf.Tensor:
    """A number for each row."""
    return outputs.sum(-1)


@psf.remote(roles=("boss",))
class Reserved(Hidden):
    """A stage that only a boss may have made."""


@psf.remote(roles=("boss",))
def reserved_loss(outputs: psf.Tensor, targets: psf.Tensor) -> psf.Tensor:
    """A loss that only a boss may use."""
    return F.cross_entropy(outputs, targets.data)
