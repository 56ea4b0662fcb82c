"""The peer's side of benchmarks/collectives.py: torch.distributed over gloo on loopback.

python _torch_collectives.py 2      (ranks)
"""

import functools
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks._ranks import BARRIERS, OPERATION_BYTES, SIZES, human, iterations
from benchmarks._torch import serve_ranks


def measure(run: Callable[[], object], times: int) -> float:
    """Seconds an operation, on the slowest rank."""
    for _ in range(2):
        run()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(times):
        run()
    took = torch.tensor((time.perf_counter() - start) / times, dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return float(took)


@functools.cache
def array(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes // 4)


def all_reduce(nbytes: int) -> float:
    x = array(nbytes).fill_(0)
    return measure(lambda: dist.all_reduce(x), iterations(nbytes))


def operations() -> dict[str, Callable[[], object]]:
    """Each on `OPERATION_BYTES`; into memory that is there."""
    x = array(OPERATION_BYTES).fill_(0)
    y, part = torch.zeros_like(x), torch.zeros(OPERATION_BYTES // 4 // dist.get_world_size())
    return {
        "broadcast": lambda: dist.broadcast(x, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(x, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, x),
        "all_to_all": lambda: dist.all_to_all_single(y, x),
    }


def cases() -> dict[str, Callable[[], float]]:
    def bandwidth(nbytes: int, seconds: float) -> float:
        return nbytes / seconds

    found: dict[str, Callable[[], float]] = {"barrier": lambda: measure(dist.barrier, BARRIERS)}
    found["all_reduce 4 KiB"] = lambda: all_reduce(4096)
    for nbytes in SIZES:
        found[f"all_reduce {human(nbytes)}"] = lambda n=nbytes: bandwidth(n, all_reduce(n))
    for name in ("broadcast", "all_gather", "reduce_scatter", "all_to_all"):
        found[name] = lambda name=name: bandwidth(
            OPERATION_BYTES, measure(operations()[name], iterations(OPERATION_BYTES))
        )
    return found


if __name__ == "__main__":
    serve_ranks(int(sys.argv[1]), cases)
