"""The parameter server against one over torch.distributed.rpc: push and pull of 25M float32, one trainer.

    python benchmarks/parameter_server.py --torch-python /path/to/python [--reps 5] [--parameters 25000000]

Both sides send the gradients, update on the server (SGD, Adam), and get all parameters back, in one call.
Sides are interleaved in one run, with the same allocator, pinned alike: trainer on one core, shard on another
(with PSF_BENCH_PIN=0 neither is), one thread each.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._host import PINNED, pin, set_allocator
from benchmarks._peer import measure, ours, parse, theirs
from benchmarks._side import Figures, serve_side
from benchmarks._table import Row, report
from psframework import nn, optim
from psframework.cluster.connect import connect
from psframework.cluster.handle import Cluster
from psframework.cluster.local import LocalCluster, local_cluster
from psframework.observe.logs import configure_logging
from psframework.optim.optimizer import Optimizer

CALLS = 6
ROWS = (
    Row("sgd", "SGD, shared memory", "ms", 1e3, 0.25, lower_is_better=True),
    Row("adam", "Adam, shared memory", "ms", 1e3, None, lower_is_better=True),
    Row("tcp_sgd", "SGD, striped / TCP", "ms", 1e3, 1 / 1.5, lower_is_better=True),
    Row("tcp_adam", "Adam, striped / TCP", "ms", 1e3, None, lower_is_better=True),
)


class Flat(nn.Module):
    """A model of one large parameter."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(np.zeros(size, np.float32))


class Trainer:
    """Our side: a local cluster with one shard, and the trainer in this process."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._opened = 0

    async def push_pull(self, cluster: Cluster, optimizer: Optimizer) -> float:
        model = Flat(self._size)
        self._opened += 1
        ps = await cluster.parameter_server(model, name=f"flat-{self._opened}", optimizer=optimizer)
        weight = model.weight
        for _ in range(2):  # both gradient arenas hold gradients from here on
            weight.grad = np.ones(self._size, np.float32)
            await ps.push_pull()
        start = time.perf_counter()
        for _ in range(CALLS):
            weight.grad = weight.grad_buffer  # as after a backward
            await ps.push_pull()
        seconds = (time.perf_counter() - start) / CALLS
        await ps.close()
        return seconds


def run_side(size: int) -> None:
    """One of our sides, as a process; its lanes are PSF_LANES."""
    set_allocator()
    configure_logging(level="error")  # between repetitions the loop stands still, and is not blocked
    trainer = Trainer(size)
    with asyncio.Runner() as runner:

        async def enter() -> tuple[LocalCluster, object, Cluster]:
            local = await local_cluster(parameter_servers=1, lanes=os.environ["PSF_LANES"]).__aenter__()
            connection = connect(local.address, job="bench")
            return local, connection, await connection.__aenter__()

        local, connection, cluster = runner.run(enter())
        pin(0)
        if PINNED:
            cores = (
                sorted(os.sched_getaffinity(0)) if os.cpu_count() == 1 else list(range(os.cpu_count() or 1))
            )
            os.sched_setaffinity(local.processes["parameter-server-0"].pid, {cores[1 % len(cores)]})

        def case(make: Callable[[], Optimizer]) -> Callable[[], float]:
            return lambda: runner.run(trainer.push_pull(cluster, make()))

        sgd, adam = case(lambda: optim.SGD(lr=1e-3)), case(lambda: optim.Adam(lr=1e-3))
        serve_side({"sgd": sgd, "adam": adam, "tcp_sgd": sgd, "tcp_adam": adam})

        async def leave() -> None:
            await connection.__aexit__(None, None, None)  # type: ignore[attr-defined]
            await local.__aexit__(None, None, None)

        runner.run(leave())


def main() -> int:
    """Prints the table; 1 if a target is missed."""
    flags = {
        "--parameters": {"type": int, "default": 25_000_000},
        "--cases": {"default": "sgd,adam,tcp_sgd,tcp_adam", "help": "which rows, by comma"},
    }
    args = parse(__doc__, reps=3, flags=flags)
    size = str(args.parameters)
    if args.side:
        run_side(args.parameters)
        return 0
    figures: Figures = {}
    rows = [row for row in ROWS if row.case in args.cases.split(",")]
    for lanes, transport in (("inline,striped,shm", "default"), ("inline,striped", "uv")):
        part = [row for row in rows if row.case.startswith("tcp_") == (transport == "uv")]
        if part:
            sides = [ours(__file__, "--parameters", size, environment={"PSF_LANES": lanes})]
            more = {"PSF_BENCH_PARAMETERS": size}
            sides += theirs(args, "torch", "_torch_ps.py", transport, name="torch RPC", environment=more)
            figures |= measure(sides, part, args.reps)
    print(f"push and pull of {args.parameters / 1e6:g}M float32, 1 trainer, 1 shard")
    return 0 if report(figures, rows, peers=["torch RPC"]) else 1


if __name__ == "__main__":
    sys.exit(main())
