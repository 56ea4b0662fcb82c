"""Random programs of operations, run by us and by torch: what the oracle test compares.

A program is a list of steps over earlier values. It is made while it is run, so that each step is chosen for
the values at hand: within its domain, away from kinks and ties, and scaled so that numbers stay near 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from psframework.autograd import Tensor, backward, no_grad

Array = np.ndarray
ROUNDING = float(np.finfo(np.float32).eps)
LARGEST, SIZE = 3.0, 96  # values beyond the first are scaled down; results of more elements are refused


class Refused(Exception):
    """The values at hand do not suit the operation."""


@dataclass(frozen=True)
class Op:
    """An operation as both sides know it.

    Attributes:
        name: as the program prints it.
        choose: picks places of operands and options for the values of a `Draw`; raises Refused.
        ours: takes the operands as tensors, and the options.
        theirs: the same for torch.
    """

    name: str
    choose: Callable[[Draw], tuple[tuple[int, ...], tuple[Any, ...]]]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]


@dataclass(frozen=True)
class Step:
    """One line of a program."""

    op: Op
    operands: tuple[int, ...]
    options: tuple[Any, ...]

    def __str__(self) -> str:
        operands = [f"v{i}" for i in self.operands]
        return f"{self.op.name}({', '.join(operands + [_literal(value) for value in self.options])})"


def _literal(value: Any) -> str:
    return f"np.array({value.tolist()})" if isinstance(value, np.ndarray) else repr(value)


@dataclass
class Draw:
    """What a chooser sees: a generator of random numbers, and the values so far."""

    rng: np.random.Generator
    values: list[Array] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    too_large: set[int] = field(default_factory=set)

    def place(self, suits: Callable[[Array], bool] = lambda v: True) -> int:
        """One of the values that suit: often one that nothing uses yet, else a new one rather than an old."""
        found = [i for i, v in enumerate(self.values) if i not in self.too_large and suits(v)]
        require(found)
        fresh = [i for i in found if i not in self.used]
        if fresh and self.rng.random() < 0.6:
            return self.one(fresh)
        return found[max(0, len(found) - 1 - int(self.rng.exponential(3)))]

    def axis(self, value: Array) -> int:
        """An axis, from either end."""
        require(value.ndim)
        return int(self.rng.integers(-value.ndim, value.ndim))

    def integer(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        return int(self.rng.integers(low, high + 1))

    def one(self, items: Sequence[Any]) -> Any:
        """One of the items."""
        return items[int(self.rng.integers(len(items)))]


def require(condition: object) -> None:
    """Refuse the choice unless `condition` holds."""
    if not condition:
        raise Refused


@dataclass
class Program:
    """Leaves and steps. Value `v0` is the first leaf; each step makes the next value."""

    leaves: list[Array]
    steps: list[Step]

    def __str__(self) -> str:
        lines = [f"v{i} = leaf of shape {leaf.shape}" for i, leaf in enumerate(self.leaves)]
        return "\n".join(lines + [f"v{i} = {s}" for i, s in enumerate(self.steps, len(self.leaves))])

    def open_values(self) -> list[int]:
        """Values that no step takes: together they are the result."""
        used = {i for step in self.steps for i in step.operands}
        return [i for i in range(len(self.leaves), len(self.leaves) + len(self.steps)) if i not in used]


def make_program(seed: int, ops: Sequence[Op], scale: Op, length: int = 30) -> Program:
    """A program of `length` operations; the same for one seed."""
    rng = np.random.default_rng(seed)
    shapes = [rng.integers(1, 5, rng.integers(1, 4)) for _ in range(3)] + [np.array([2, 1, 2, 2])]
    leaves = [rng.uniform(-1.5, 1.5, shape).astype(np.float32) for shape in shapes]
    program, draw = Program(leaves, []), Draw(rng, list(leaves))
    count = 0
    while count < length:
        op = ops[int(rng.integers(len(ops)))]
        try:
            step, value = _step(op, draw)
        except Refused:
            continue
        count += 1
        program.steps.append(step)
        draw.values.append(value)
        draw.used.update(step.operands)
        largest = float(np.abs(value).max())
        if largest > LARGEST:
            draw.too_large.add(len(draw.values) - 1)
            step = Step(scale, (len(draw.values) - 1,), (float(f"{1 / largest:.3g}"),))
            program.steps.append(step)
            draw.values.append(np.asarray(value * step.options[0]))
    return program


def _step(op: Op, draw: Draw) -> tuple[Step, Array]:
    operands, options = op.choose(draw)
    with no_grad():
        value = op.ours(*(Tensor(draw.values[i]) for i in operands), *options).data
    require(0 < value.size <= SIZE and np.isfinite(value).all() and value.ndim <= 5)
    return Step(op, operands, options), value


def _weights(shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape, dtype=np.int64))
    return np.cos(np.arange(count)).reshape(shape) / max(count, 1)


def run_ours(program: Program) -> list[Array]:
    """The open values, and the gradient of each leaf."""
    leaves = [Tensor(leaf, True) for leaf in program.leaves]
    values: list[Any] = list(leaves)
    for step in program.steps:
        values.append(step.op.ours(*(values[i] for i in step.operands), *step.options))
    outs = [values[i] for i in program.open_values()]
    live = [out for out in outs if out.requires_grad]
    found = backward(live, [_weights(out.shape).astype(np.float32) for out in live])
    return [*(out.data for out in outs), *(found.get(t, np.zeros(t.shape, np.float32)) for t in leaves)]


def run_torch(program: Program, dtype: Any, noise: int | None = None) -> list[Array]:
    """The same by torch; with `noise`, a seed, each value is moved as rounding to float32 may move it."""
    import torch

    if noise is not None:
        torch.manual_seed(noise)
    leaves = [torch.tensor(leaf, dtype=dtype, requires_grad=True) for leaf in program.leaves]
    values = list(leaves)
    for step in program.steps:
        value = step.op.theirs(*(values[i] for i in step.operands), *step.options)
        values.append(value if noise is None else value * (1 + ROUNDING * torch.randn_like(value)))
    outs = [values[i] for i in program.open_values()]
    live = [out for out in outs if out.requires_grad]
    torch.autograd.backward(live, [torch.tensor(_weights(out.shape), dtype=dtype) for out in live])
    grads = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return [array.detach().numpy() for array in (*outs, *grads)]


def error(found: Sequence[Array], expected: Sequence[Array]) -> float:
    """The largest difference, relative to numbers above 1 and absolute below; infinite for other shapes."""
    worst = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        if ours.shape != theirs.shape or not np.isfinite(ours).all():
            return np.inf
        differences = np.abs(ours.astype(np.float64) - theirs) / np.maximum(1, np.abs(theirs))
        worst = max(worst, float(differences.max(initial=0)))
    return worst
