"""One training step of a small convolutional network: our engine against hand-written NumPy, and torch.

    python benchmarks/cnn.py [--torch-python /path/to/python] [--reps 25]

(64, 1, 28, 28) - conv 3x3x16 - relu - max pool 2 - conv 3x3x32 - relu - max pool 2 - linear 10, with SGD.
Ours runs twice: `autograd` updates its parameters as the NumPy side does, `nn` is `nn.Sequential` with
`optim.SGD`, as the torch side is. The NumPy side unfolds windows to one matrix product, with images as
(channel, row, column, image): the fastest layout of those tried. One thread a side, the same allocator,
interleaved.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._peer import engines, parse
from benchmarks._steps import Step, measure_steps, serve_steps
from benchmarks._table import Row, report

CASE, STEPS, BATCH, SIZE, CLASSES = "cnn", 20, 64, 28, 10
CHANNELS = (1, 16, 32)
FEATURES = CHANNELS[-1] * (SIZE // 4) ** 2
RATE = 0.01


def data() -> tuple[Any, Any, list[Any]]:
    """Images, labels, and weights with their biases, as torch shapes them: the same on every side."""
    import numpy as np

    rng = np.random.default_rng(0)
    shapes = [(o, i, 3, 3) for i, o in itertools.pairwise(CHANNELS)] + [(CLASSES, FEATURES)]
    parameters: list[Any] = []
    for shape in shapes:
        fan_in = np.prod(shape[1:])
        parameters.append((rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32))
        parameters.append(np.zeros(shape[0], np.float32))
    images = rng.standard_normal((BATCH, 1, SIZE, SIZE)).astype(np.float32)
    return images, rng.integers(0, CLASSES, BATCH), parameters


def unfold(images: Any) -> Any:
    """(channel, row, column, image) with a border of one zero, as a matrix of 3 by 3 windows."""
    import numpy as np

    channels, rows, columns, count = images.shape
    padded = np.zeros((channels, rows + 2, columns + 2, count), np.float32)
    padded[:, 1:-1, 1:-1] = images
    windows = np.empty((channels, 3, 3, rows, columns, count), np.float32)
    for i in range(3):
        for j in range(3):
            windows[:, i, j] = padded[:, i : i + rows, j : j + columns]
    return windows.reshape(channels * 9, rows * columns * count)


def fold(matrix: Any, shape: tuple[int, ...]) -> Any:
    """The opposite of `unfold`, where windows overlap their sum."""
    import numpy as np

    channels, rows, columns, count = shape
    windows = matrix.reshape(channels, 3, 3, rows, columns, count)
    padded = np.zeros((channels, rows + 2, columns + 2, count), np.float32)
    for i in range(3):
        for j in range(3):
            padded[:, i : i + rows, j : j + columns] += windows[:, i, j]
    return padded[:, 1:-1, 1:-1]


CORNERS = [(slice(None), slice(i, None, 2), slice(j, None, 2)) for i in range(2) for j in range(2)]


def pool(images: Any) -> Any:
    """The largest of each 2 by 2 window."""
    import numpy as np

    out = np.maximum(images[CORNERS[0]], images[CORNERS[1]])
    np.maximum(out, images[CORNERS[2]], out=out)
    return np.maximum(out, images[CORNERS[3]], out=out)


def unpool(gradient: Any, images: Any, pooled: Any) -> Any:
    """The gradient of `pool`. Equal values all get it: they are zeros, which relu stops."""
    import numpy as np

    into = np.empty_like(images)
    for corner in CORNERS:
        np.multiply(gradient, images[corner] == pooled, out=into[corner])
    return into


def numpy_step() -> Step:
    """What one writes by hand."""
    import numpy as np

    x, y, parameters = data()
    w1, b1, w2, b2, w3, b3 = parameters
    images, rate, every = np.ascontiguousarray(x.transpose(1, 2, 3, 0)), np.float32(RATE), np.arange(BATCH)

    def convolve(images: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
        windows = unfold(images)
        z = weight.reshape(len(weight), -1) @ windows
        z += bias[:, None]
        np.maximum(z, 0, out=z)
        return windows, z.reshape(len(weight), *images.shape[1:])

    def step() -> float:
        windows1, h1 = convolve(images, w1, b1)
        p1 = pool(h1)
        windows2, h2 = convolve(p1, w2, b2)
        p2 = pool(h2)
        features = p2.reshape(FEATURES, BATCH)
        z = w3 @ features + b3[:, None]
        z -= z.max(0)
        exponentials = np.exp(z)
        sums = exponentials.sum(0)
        loss = (np.log(sums) - z[y, every]).mean()
        g = exponentials / sums
        g[y, every] -= 1
        g /= BATCH
        into_w3, into_b3 = g @ features.T, g.sum(1)
        g = unpool((w3.T @ g).reshape(p2.shape), h2, p2)
        g *= h2 > 0
        g = g.reshape(len(w2), -1)
        into_w2, into_b2 = g @ windows2.T, g.sum(1)
        g = unpool(fold(w2.reshape(len(w2), -1).T @ g, p1.shape), h1, p1)
        g *= h1 > 0
        g = g.reshape(len(w1), -1)
        into_w1, into_b1 = g @ windows1.T, g.sum(1)
        for p, gradient in zip(parameters, (into_w1, into_b1, into_w2, into_b2, into_w3, into_b3)):
            gradient *= rate
            p -= gradient.reshape(p.shape)
        return float(loss)

    return step


def autograd_step() -> Step:
    """Our tensors, with the update by hand."""
    import numpy as np

    import psframework.nn.functional as F
    from psframework.autograd import tensor

    x, y, arrays = data()
    parameters = [tensor(array, True) for array in arrays]
    w1, b1, w2, b2, w3, b3 = parameters
    rate = np.float32(RATE)

    def step() -> float:
        h = F.max_pool2d(F.relu(F.conv2d(x, w1, b1, padding=1)), 2)
        h = F.max_pool2d(F.relu(F.conv2d(h, w2, b2, padding=1)), 2)
        loss = F.cross_entropy(F.linear(h.flatten(1), w3, b3), y)
        loss.backward()
        for p in parameters:
            gradient = p.grad
            gradient *= rate
            p.data -= gradient
            p.grad = None
        return float(loss)

    return step


def _layers(nn: Any) -> list[Any]:
    """The same network from psframework.nn or torch.nn."""
    layers: list[Any] = []
    for i, o in itertools.pairwise(CHANNELS):
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return [*layers, nn.Flatten(), nn.Linear(FEATURES, CLASSES)]


def nn_step() -> Step:
    """Our modules and optimizer."""
    import psframework.nn.functional as F
    from psframework import nn, optim

    x, y, arrays = data()
    model = nn.Sequential(*_layers(nn))
    for parameter, array in zip(model.parameters(), arrays):
        parameter.data = array
    optimizer = optim.SGD(model.parameters(), lr=RATE)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def torch_step() -> Step:
    """torch's modules and optimizer."""
    import torch

    torch.set_num_threads(1)
    x, y, arrays = data()
    model = torch.nn.Sequential(*_layers(torch.nn))
    for parameter, array in zip(model.parameters(), arrays):
        parameter.data = torch.from_numpy(array)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


SIDES = {"autograd": autograd_step, "nn": nn_step, "numpy": numpy_step, "torch": torch_step}


def main() -> int:
    """Runs all sides and prints the table; 1 if a target is missed."""
    args = parse(__doc__, reps=25)
    if args.side:
        serve_steps({CASE: SIDES[args.side]}, {CASE: STEPS})
        return 0
    sides = engines(args, __file__, list(SIDES))
    names = [side.name for side in sides]
    figures = measure_steps(sides, {CASE: names}, args.reps)
    met = True
    for ours, peer, target in (("autograd", "numpy", 0.9), ("nn", "numpy", 0.9), ("nn", "torch", None)):
        if peer in names:
            rows = [Row(CASE, "CNN 28x28, batch 64", "/s", target=target)]
            met = report(figures, rows, ours=ours, peers=[peer]) and met
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
