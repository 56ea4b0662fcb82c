"""One training step of an MLP (forward, backward, SGD): our engine against NumPy, torch and HIPS.

    python benchmarks/mlp.py [--torch-python /path/to/python] [--hips-python /path/to/python] [--reps 25]

Two sizes: 784-512-512-10 at batch 64, where matrix products are nearly all, and 32-32-32-10 at batch 8, where
the engine's overhead is. Ours runs twice: `autograd` updates its parameters as the NumPy side does, `nn` is
`nn.Sequential` with `optim.SGD`, as the torch side is. NumPy is written by hand, `hips` is HIPS autograd. One
thread a side, the same allocator, interleaved.
"""

from __future__ import annotations

import itertools
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._peer import engines, parse
from benchmarks._side import Figures
from benchmarks._steps import Step, measure_steps, serve_steps
from benchmarks._table import Row, report

# case: layers, batch, steps of one repetition
SIZES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "mlp": ((784, 512, 512, 10), 64, 40),
    "tiny": ((32, 32, 32, 10), 8, 1000),
}
LABELS = {"mlp": "784-512-512-10, batch 64", "tiny": "32-32-32-10, batch 8"}
RATE = 0.01


def data(dims: tuple[int, ...], batch: int) -> tuple[Any, Any, list[Any], list[Any]]:
    """Inputs, labels, weights (in, out) and biases: the same on every side."""
    import numpy as np

    rng = np.random.default_rng(0)
    weights = [
        (rng.standard_normal((i, o)) / np.sqrt(i)).astype(np.float32) for i, o in itertools.pairwise(dims)
    ]
    biases = [np.zeros(o, np.float32) for o in dims[1:]]
    inputs = rng.standard_normal((batch, dims[0])).astype(np.float32)
    return inputs, rng.integers(0, dims[-1], batch), weights, biases


def numpy_step(dims: tuple[int, ...], batch: int) -> Step:
    """What one writes by hand."""
    import numpy as np

    x, y, weights, biases = data(dims, batch)
    rate, rows, last = np.float32(RATE), np.arange(batch), len(weights) - 1

    def step() -> float:
        layers = [x]
        for i, (weight, bias) in enumerate(zip(weights, biases)):
            z = layers[-1] @ weight + bias
            layers.append(np.maximum(z, 0) if i < last else z)
        z = layers.pop()
        z = z - z.max(1, keepdims=True)
        exponentials = np.exp(z)
        sums = exponentials.sum(1, keepdims=True)
        loss = (np.log(sums[:, 0]) - z[rows, y]).mean()
        g = exponentials / sums
        g[rows, y] -= 1
        g /= batch
        for i in reversed(range(last + 1)):
            into_weight, into_bias = layers[i].T @ g, g.sum(0)
            if i:
                g = (g @ weights[i].T) * (layers[i] > 0)
            weights[i] -= rate * into_weight
            biases[i] -= rate * into_bias
        return float(loss)

    return step


def autograd_step(dims: tuple[int, ...], batch: int) -> Step:
    """Our tensors, with the update by hand."""
    import numpy as np

    import psframework.nn.functional as F
    from psframework.autograd import tensor

    x, y, weights, biases = data(dims, batch)
    layers = [(tensor(w.T, True), tensor(b, True)) for w, b in zip(weights, biases)]
    parameters = [p for layer in layers for p in layer]
    rate, last = np.float32(RATE), len(layers) - 1

    def step() -> float:
        h = x
        for i, (weight, bias) in enumerate(layers):
            h = F.linear(h, weight, bias)
            if i < last:
                h = F.relu(h)
        loss = F.cross_entropy(h, y)
        loss.backward()
        for p in parameters:
            gradient = p.grad
            gradient *= rate
            p.data -= gradient
            p.grad = None
        return float(loss)

    return step


def nn_step(dims: tuple[int, ...], batch: int) -> Step:
    """Our modules and optimizer."""
    import psframework.nn.functional as F
    from psframework import nn, optim

    x, y, weights, biases = data(dims, batch)
    layers: list[Any] = []
    for weight, bias in zip(weights, biases):
        layer = nn.Linear(*weight.shape)
        layer.weight.data, layer.bias.data = weight.T.copy(), bias
        layers += [layer, nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    optimizer = optim.SGD(model.parameters(), lr=RATE)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def torch_step(dims: tuple[int, ...], batch: int) -> Step:
    """torch's modules and optimizer."""
    import torch

    torch.set_num_threads(1)
    x, y, weights, biases = data(dims, batch)
    layers: list[Any] = []
    for weight, bias in zip(weights, biases):
        layer = torch.nn.Linear(*weight.shape)
        layer.weight.data, layer.bias.data = torch.from_numpy(weight.T.copy()), torch.from_numpy(bias)
        layers += [layer, torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def hips_step(dims: tuple[int, ...], batch: int) -> Step:
    """HIPS autograd: the same operations as the NumPy side, differentiated by it."""
    import autograd.numpy as anp
    import numpy as np
    from autograd import value_and_grad

    x, y, weights, biases = data(dims, batch)
    rate, rows, last = np.float32(RATE), np.arange(batch), len(weights) - 1

    def loss(parameters: Any) -> Any:
        h = x
        for i, (weight, bias) in enumerate(parameters):
            h = anp.dot(h, weight) + bias
            if i < last:
                h = anp.maximum(h, np.float32(0))
        h = h - anp.max(h, axis=1, keepdims=True)
        return anp.mean(anp.log(anp.sum(anp.exp(h), axis=1)) - h[rows, y])

    differentiate, parameters = value_and_grad(loss), list(zip(weights, biases))

    def step() -> float:
        value, gradients = differentiate(parameters)
        for (weight, bias), (into_weight, into_bias) in zip(parameters, gradients):
            weight -= rate * into_weight
            bias -= rate * into_bias
        return float(value)

    return step


STEPS = {
    "autograd": autograd_step,
    "nn": nn_step,
    "numpy": numpy_step,
    "torch": torch_step,
    "hips": hips_step,
}


def main() -> int:
    """Runs all sides and prints the table; 1 if a target is missed."""
    args = parse(__doc__, reps=25, peers=["torch", "hips"])
    if args.side:
        make = {case: partial(STEPS[args.side], dims, batch) for case, (dims, batch, _) in SIZES.items()}
        serve_steps(make, {case: count for case, (_, _, count) in SIZES.items()})
        return 0
    sides = engines(args, __file__, list(STEPS))
    names = [side.name for side in sides]
    return 0 if show(measure_steps(sides, dict.fromkeys(SIZES, names), args.reps), names) else 1


def products(case: str) -> float:
    """Floating-point operations of a step's matrix products: the inputs need no gradient."""
    dims, batch, _ = SIZES[case]
    return 2.0 * batch * (3 * sum(i * o for i, o in itertools.pairwise(dims)) - dims[0] * dims[1])


def show(figures: Figures, names: list[str]) -> bool:
    """Prints a table against each peer."""
    targets = {("autograd", "numpy"): (0.95, 0.6), ("nn", "torch"): (1.7, 2.0), ("autograd", "hips"): (3, 3)}
    met = True
    pairs = [("autograd", "numpy"), ("nn", "numpy"), ("autograd", "torch"), ("nn", "torch")]
    for ours, peer in [*pairs, ("autograd", "hips")]:
        if peer in names:
            wanted = targets.get((ours, peer), (None, None))
            rows = [Row(case, LABELS[case], "/s", target=t) for case, t in zip(SIZES, wanted)]
            met = report(figures, rows, ours=ours, peers=[peer]) and met
    # Where the products alone reach the core's peak no engine can be far ahead of another.
    report(
        figures, [Row("mlp", "the same", "GFLOP/s", products("mlp") * 1e-9)], ours=names[0], peers=names[1:]
    )
    return met


if __name__ == "__main__":
    sys.exit(main())
