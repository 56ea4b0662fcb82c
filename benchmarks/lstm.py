"""One training step of a 2-layer LSTM (forward, backward, SGD): our layers, hand-written NumPy and torch.

    python benchmarks/lstm.py [--torch-python /path/to/python] [--reps 15]

64 features, 128 hidden units, 32 steps, batch 32; the loss is cross-entropy over 10 classes on the last
state. The NumPy side is the fastest that we could write without an engine: the same layout and the same
backpropagation through time as our layers, by hand. A 2-layer transformer (width 128, 4 heads, 512 hidden
units, 32 places, batch 16) follows, beside torch's figure. One thread a side, the same allocator,
interleaved.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._peer import engines, parse
from benchmarks._steps import Step, measure_steps, serve_steps
from benchmarks._table import Row, report

STEPS, BATCH, FEATURES, HIDDEN, CLASSES = 32, 32, 64, 128, 10
WIDTH, HEADS, FORWARD, PLACES, SEQUENCES = 128, 4, 512, 32, 16
RATE = 0.01
REPEAT = {"lstm": 20, "transformer": 10}


def lstm_data() -> tuple[Any, Any, dict[str, Any]]:
    """Inputs, labels, and the state of a model by torch's names: the same on every side."""
    import numpy as np

    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return rng.uniform(-1, 1, shape).astype(np.float32) / np.float32(np.sqrt(HIDDEN))

    state = {}
    for layer, features in enumerate((FEATURES, HIDDEN)):
        state[f"lstm.weight_ih_l{layer}"] = draw(4 * HIDDEN, features)
        state[f"lstm.weight_hh_l{layer}"] = draw(4 * HIDDEN, HIDDEN)
        state[f"lstm.bias_ih_l{layer}"] = draw(4 * HIDDEN)
        state[f"lstm.bias_hh_l{layer}"] = draw(4 * HIDDEN)
    state |= {"out.weight": draw(CLASSES, HIDDEN), "out.bias": draw(CLASSES)}
    inputs = rng.standard_normal((STEPS, BATCH, FEATURES)).astype(np.float32)
    return inputs, rng.integers(0, CLASSES, BATCH), state


def forward_by_hand(x: Any, w_ih: Any, w_hh: Any, bias: Any) -> tuple[Any, ...]:
    """One layer over all steps: gates (4, steps, batch, hidden), states, and the tanh of the cells."""
    import numpy as np

    half = np.array([0.5, 0.5, 1, 0.5], np.float32).reshape(4, 1, 1)
    rest = 1 - half
    gates = x.reshape(STEPS * BATCH, -1) @ w_ih.reshape(4, HIDDEN, -1).transpose(0, 2, 1)
    gates += bias.reshape(4, 1, HIDDEN)
    gates = gates.reshape(4, STEPS, BATCH, HIDDEN)
    hs = np.zeros((STEPS + 1, BATCH, HIDDEN), np.float32)
    cs, tanhs = np.zeros_like(hs), np.empty_like(hs[1:])
    recurrent = np.ascontiguousarray(w_hh.reshape(4, HIDDEN, HIDDEN).transpose(0, 2, 1))
    scratch = np.empty((4, BATCH, HIDDEN), np.float32)
    for t in range(STEPS):
        a = gates[:, t]
        a += np.matmul(hs[t], recurrent, out=scratch)
        a *= half  # sigmoid(x) is (tanh(x / 2) + 1) / 2
        np.tanh(a, out=a)
        a *= half
        a += rest
        i, f, g, o = a
        np.multiply(f, cs[t], out=cs[t + 1])
        cs[t + 1] += np.multiply(i, g, out=scratch[0])
        np.tanh(cs[t + 1], out=tanhs[t])
        np.multiply(o, tanhs[t], out=hs[t + 1])
    return hs, cs, tanhs, gates


def backward_by_hand(kept: tuple[Any, ...], x: Any, w_ih: Any, w_hh: Any, dy: Any) -> tuple[Any, ...]:
    """Gradients of a layer's weights and bias, and of each gate's sum, (4, steps * batch, hidden).

    `dy` is (steps, batch, hidden), or (batch, hidden) for the last step alone.
    """
    import numpy as np

    hs, cs, tanhs, gates = kept
    i, f, g, o = gates
    deltas = gates * gates
    np.subtract(gates[:2], deltas[:2], out=deltas[:2])
    np.subtract(1, deltas[2], out=deltas[2])
    np.subtract(o, deltas[3], out=deltas[3])
    for delta, factor in zip(deltas, (g, cs[:-1], i, tanhs)):
        delta *= factor
    through = (1 - tanhs * tanhs) * o
    recurrent, scratch = w_hh.reshape(4, HIDDEN, HIDDEN), np.empty((4, BATCH, HIDDEN), np.float32)
    dh = dy.copy() if dy.ndim == 2 else np.zeros((BATCH, HIDDEN), np.float32)
    dc = np.zeros((BATCH, HIDDEN), np.float32)
    for t in reversed(range(STEPS)):
        if dy.ndim == 3:
            dh += dy[t]
        into_others, into_o = deltas[:3, t], deltas[3, t]
        into_o *= dh
        dc += np.multiply(dh, through[t], out=scratch[0])
        into_others *= dc
        dc *= f[t]
        np.matmul(deltas[:, t], recurrent, out=scratch).sum(0, out=dh)
    flat = deltas.reshape(4, STEPS * BATCH, HIDDEN)
    turned = flat.transpose(0, 2, 1)
    into_ih = (turned @ x.reshape(STEPS * BATCH, -1)).reshape(w_ih.shape)
    into_hh = (turned @ hs[:-1].reshape(STEPS * BATCH, -1)).reshape(w_hh.shape)
    return into_ih, into_hh, flat.sum(1).reshape(-1), flat


def numpy_lstm() -> Step:
    """What one writes by hand."""
    import numpy as np

    x, y, state = lstm_data()
    rate, rows = np.float32(RATE), np.arange(BATCH)
    layers = [
        [state[f"lstm.{name}_l{k}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        for k in (0, 1)
    ]
    weight, bias = state["out.weight"], state["out.bias"]

    def step() -> float:
        inputs, kept = [x], []
        for w_ih, w_hh, b_ih, b_hh in layers:
            kept.append(forward_by_hand(inputs[-1], w_ih, w_hh, b_ih + b_hh))
            inputs.append(kept[-1][0][1:])
        last = inputs[-1][-1]
        z = last @ weight.T + bias
        z -= z.max(1, keepdims=True)
        exponentials = np.exp(z)
        sums = exponentials.sum(1, keepdims=True)
        loss = (np.log(sums[:, 0]) - z[rows, y]).mean()
        g = exponentials / sums
        g[rows, y] -= 1
        g /= BATCH
        dy, updates = g @ weight, [(weight, g.T @ last), (bias, g.sum(0))]
        for k in (1, 0):
            w_ih, w_hh, b_ih, b_hh = layers[k]
            into_ih, into_hh, into_bias, flat = backward_by_hand(kept[k], inputs[k], w_ih, w_hh, dy)
            if k:
                by_gate = w_ih.reshape(4, HIDDEN, -1)
                dy = sum(flat[gate] @ by_gate[gate] for gate in range(4)).reshape(STEPS, BATCH, -1)
            updates += [(w_ih, into_ih), (w_hh, into_hh), (b_ih, into_bias), (b_hh, into_bias)]
        for parameter, gradient in updates:
            parameter -= rate * gradient
        return float(loss)

    return step


def classifier(nn: Any, last: Callable[[Any], Any]) -> Any:
    """The model, of our modules or torch's."""

    class Classifier(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(FEATURES, HIDDEN, 2)
            self.out = nn.Linear(HIDDEN, CLASSES)

        def forward(self, x: Any) -> Any:
            return self.out(last(self.lstm(x)[1][0]))

    return Classifier()


def psf_lstm() -> Step:
    """Our modules and optimizer."""
    from psframework import nn

    x, y, state = lstm_data()
    model = classifier(nn, lambda h: h[-1])
    model.load_state_dict(state)
    return psf_step(model, x, y)


def torch_lstm() -> Step:
    """torch's modules and optimizer."""
    import torch

    torch.set_num_threads(1)
    x, y, state = lstm_data()
    model = classifier(torch.nn, lambda h: h[-1])
    model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    return torch_step(model, x, y)


def transformer_data() -> tuple[Any, Any]:
    """Inputs and labels."""
    import numpy as np

    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((SEQUENCES, PLACES, WIDTH)).astype(np.float32)
    return inputs, rng.integers(0, WIDTH, SEQUENCES * PLACES)


def transformer(nn: Any) -> Any:
    """Two layers and a flat view of what comes out, of our modules or torch's."""

    class Flat(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, FORWARD, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)

        def forward(self, x: Any) -> Any:
            return self.encoder(x).reshape(SEQUENCES * PLACES, WIDTH)

    return Flat()


def transformer_state() -> dict[str, Any]:
    """The same on every side: ours, seeded."""
    from psframework import nn

    nn.manual_seed(0)
    return transformer(nn).state_dict()  # type: ignore[no-any-return]


def psf_transformer() -> Step:
    """Our modules and optimizer."""
    from psframework import nn

    nn.manual_seed(0)
    return psf_step(transformer(nn), *transformer_data())


def torch_transformer() -> Step:
    """torch's modules and optimizer."""
    import torch

    torch.set_num_threads(1)
    model = transformer(torch.nn)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in transformer_state().items()})
    return torch_step(model, *transformer_data())


def psf_step(model: Any, x: Any, y: Any) -> Step:
    """A step of ours."""
    import psframework.nn.functional as F
    from psframework import optim

    optimizer = optim.SGD(model.parameters(), lr=RATE)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def torch_step(model: Any, x: Any, y: Any) -> Step:
    """A step of torch's."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


MAKERS: dict[str, dict[str, Callable[[], Step]]] = {
    "psf": {"lstm": psf_lstm, "transformer": psf_transformer},
    "numpy": {"lstm": numpy_lstm},
    "torch": {"lstm": torch_lstm, "transformer": torch_transformer},
}


def main() -> int:
    """Runs all sides and prints the tables; 1 if the target is missed."""
    args = parse(__doc__, reps=15)
    if args.side:
        serve_steps(MAKERS[args.side], REPEAT)
        return 0
    sides = engines(args, __file__, list(MAKERS))
    names = [side.name for side in sides]
    cases = {case: [name for name in names if case in MAKERS[name]] for case in REPEAT}
    figures = measure_steps(sides, cases, args.reps)
    row = Row("lstm", "LSTM 64-128-128, 32 steps, batch 32", "/s", target=0.9)
    met = report(figures, [row], ours="psf", peers=names[1:])
    if "torch" in names:
        row = Row("transformer", "transformer 128, 2 layers, 16 x 32", "/s")
        report(figures, [row], ours="psf")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
