"""What the engine costs: time an operation in a chain of scalar additions, and memory of an MLP step.

    python benchmarks/engine.py [--torch-python /path/to/python] [--reps 15]

The chain is `y = y + x` 20,000 times over arrays without axes, forward and backward. The memory is what the
resident size rises to in steps of the MLP of `mlp.py` (784-512-512-10, batch 64), parameters and optimizer
included, above what the process holds before the model is made; a tiny model has run by then, so that what
each side loads once does not count. One thread a side, the same allocator, interleaved.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._host import pin, set_allocator
from benchmarks._peer import engines, measure, parse
from benchmarks._side import serve_side
from benchmarks._table import Row, report
from benchmarks.mlp import SIZES, STEPS

OPERATIONS = 20_000


def our_chain() -> float:
    """Microseconds an operation, in ours."""
    import numpy as np

    from psframework.autograd import tensor

    x = tensor(np.float64(1.0), True)
    start = time.perf_counter()
    y = x
    for _ in range(OPERATIONS):
        y = y + x
    y.backward()
    took = time.perf_counter() - start
    assert x.grad == OPERATIONS + 1
    return took / OPERATIONS * 1e6


def torch_chain() -> float:
    """Microseconds an operation, in torch."""
    import torch

    torch.set_num_threads(1)
    x = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    start = time.perf_counter()
    y = x
    for _ in range(OPERATIONS):
        y = y + x
    y.backward()
    took = time.perf_counter() - start
    assert x.grad == OPERATIONS + 1
    return took / OPERATIONS * 1e6


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status: this case needs Linux")


def memory(side: str) -> Callable[[], float]:
    """A function that answers the bytes by which MLP steps raised the resident size; measured once."""
    small = STEPS[side](*SIZES["tiny"][:2])
    for _ in range(3):
        small()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts here
    step = STEPS[side](*SIZES["mlp"][:2])
    for _ in range(5):
        step()
    risen = float(_status("VmHWM") - before)
    return lambda: risen


ROWS = (
    Row("chain", "scalar add, forward and backward", "us", lower_is_better=True, limit=5),
    Row("memory", "peak of an MLP step", "MiB", 1 / (1 << 20), 1.1, lower_is_better=True),
)
CHAINS = {"nn": our_chain, "torch": torch_chain}


def serve(name: str) -> None:
    """A side's process."""
    set_allocator()
    pin(0)
    serve_side({"memory": memory(name), "chain": CHAINS[name]})


def main() -> int:
    """Runs all sides and prints the table; 1 if a target is missed."""
    args = parse(__doc__, reps=15)
    if args.side:
        serve(args.side)
        return 0
    figures = measure(engines(args, __file__, list(CHAINS)), ROWS, args.reps)
    return 0 if report(figures, ROWS, ours="nn") else 1


if __name__ == "__main__":
    sys.exit(main())
