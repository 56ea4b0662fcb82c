"""What torch's sides share: ranks of a process group over gloo, and agents of torch.distributed.rpc."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import rpc

from benchmarks._host import pin, set_allocator
from benchmarks._ranks import follow, lead, ranks
from benchmarks._side import serve_side

Cases = Mapping[str, Callable[[], float]]


def serve_ranks(size: int, cases: Callable[[], Cases]) -> None:
    """Runs a side of ranks, one thread and one core each; this process is rank 0.

    Args:
        size: number of ranks.
        cases: makes what each rank runs, once it has joined.
    """
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        with ranks(_member, size, meeting, cases) as pipes:
            _join(0, size, meeting)
            lead(pipes, cases())


def _member(rank: int, size: int, pipe: Connection, meeting: str, cases: Callable[[], Cases]) -> None:
    _join(rank, size, meeting)
    follow(pipe, cases())
    dist.destroy_process_group()


def _join(rank: int, size: int, meeting: str) -> None:
    warnings.simplefilter("ignore", FutureWarning)  # newer torch has other names for the same operations
    _settle(rank)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)


def serve_agents(names: Sequence[str], cases: Cases, transport: str = "default", pinned: bool = True) -> None:
    """Runs a side of agents, one thread each; this process is the first of them, which calls the others.

    Args:
        names: of the agents.
        cases: what the first runs.
        transport: "uv" leaves shared memory out: TCP only.
        pinned: whether each keeps to one core.
    """
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{os.path.join(folder, 'meeting')}"
        context = get_context("spawn")
        others = [
            context.Process(target=_agent, args=(rank, names, meeting, transport, pinned), daemon=True)
            for rank in range(1, len(names))
        ]
        for process in others:
            process.start()
        _agent(0, names, meeting, transport, pinned, cases)
        for process in others:
            process.join(10)
            process.kill()


def _agent(
    rank: int, names: Sequence[str], meeting: str, transport: str, pinned: bool, cases: Cases | None = None
) -> None:
    _settle(rank if pinned else None)
    extra: dict[str, Any] = {"_transports": ["uv"], "_channels": ["basic"]} if transport == "uv" else {}
    options = rpc.TensorPipeRpcBackendOptions(init_method=meeting, rpc_timeout=120, **extra)
    rpc.init_rpc(names[rank], rank=rank, world_size=len(names), rpc_backend_options=options)
    if cases is not None:
        serve_side(cases)
    rpc.shutdown()


def _settle(core: int | None) -> None:
    set_allocator()
    if core is not None:
        pin(core)
    torch.set_num_threads(1)
