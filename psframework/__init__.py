"""psframework: distributed training for NumPy and CuPy code, asyncio-native, over gRPC.

import psframework as psf

async with psf.connect() as cluster:
    ps = await cluster.parameter_server(model, optimizer=psf.optim.Adam(lr=1e-3), consistency=psf.BSP())
    psf.nn.functional.cross_entropy(model(x), y).backward()
    await ps.push_pull()
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

# Both before gRPC is first imported, when it reads them; what users set wins.
# At its default level its core reports every orderly goodbye of a peer.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Sockets are polled by the thread that waits for completions. gRPC's newer event engine hands every read and
# write to threads of its own: a message each way on an open stream takes 220 us so, and 140 us without, with
# a third less CPU time.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

if TYPE_CHECKING:
    from psframework import autograd, data, ddp, interop, nn, optim, pipeline
    from psframework.autograd import (
        Function,
        SparseRows,
        Tensor,
        detect_anomaly,
        enable_grad,
        is_grad_enabled,
        no_grad,
        ops,
    )
    from psframework.autograd.create import tensor as tensor
    from psframework.autograd.dlpack import from_dlpack
    from psframework.autograd.recompute import recompute as recompute
    from psframework.backend import device
    from psframework.cluster.connect import connect
    from psframework.cluster.current import current_cluster
    from psframework.cluster.handle import Cluster
    from psframework.cluster.local import LocalCluster, local_cluster
    from psframework.collective.group import ProcessGroup
    from psframework.collective.ops import ReduceOp
    from psframework.ddp.data_parallel import DataParallel
    from psframework.ddp.distributed import DistributedDataParallel
    from psframework.ddp.sharded import ShardedOptimizer
    from psframework.dist_optim.optimizer import DistributedOptimizer
    from psframework.errors import (
        AddressInUse,
        ArgumentError,
        AutogradError,
        CheckpointError,
        CollectiveMismatch,
        ConfigurationError,
        ContextClosed,
        ContextMismatch,
        DeadlineExceeded,
        Evicted,
        ModelMismatch,
        NameTaken,
        NotRegistered,
        PartialFailure,
        PeerLost,
        PermissionDenied,
        PsfError,
        RemoteError,
        RendezvousTimeout,
        ResourceExhausted,
        RolledBack,
        StaleTerm,
        UnknownTable,
        WireError,
    )
    from psframework.nn import manual_seed
    from psframework.parameter_server.handle import ParameterServer
    from psframework.parameter_server.partition import Balanced, FixedShards, Hash, MaxSize, MinSize
    from psframework.parameter_server.policy import ASP, BSP, SSP
    from psframework.rpc.compute import compute
    from psframework.rpc.functions.batching import batched
    from psframework.rpc.functions.context import current_caller
    from psframework.rpc.functions.future import Future
    from psframework.rpc.functions.pickled import pickled
    from psframework.rpc.registry import remote
    from psframework.rpc.values.types import register_type
    from psframework.rref.handle import RRef

# What is imported on first use: `psf health` and other small tools start in a fraction of the time.
_HOMES = {
    "psframework.autograd": (
        "Function",
        "SparseRows",
        "Tensor",
        "detect_anomaly",
        "enable_grad",
        "is_grad_enabled",
        "no_grad",
        "ops",
        "recompute",
        "tensor",
    ),
    "psframework.autograd.dlpack": ("from_dlpack",),
    "psframework.backend": ("device",),
    "psframework.cluster.connect": ("connect",),
    "psframework.cluster.current": ("current_cluster",),
    "psframework.cluster.handle": ("Cluster",),
    "psframework.cluster.local": ("LocalCluster", "local_cluster"),
    "psframework.collective.group": ("ProcessGroup",),
    "psframework.collective.ops": ("ReduceOp",),
    "psframework.ddp.distributed": ("DistributedDataParallel",),
    "psframework.ddp.data_parallel": ("DataParallel",),
    "psframework.ddp.sharded": ("ShardedOptimizer",),
    "psframework.dist_optim.optimizer": ("DistributedOptimizer",),
    "psframework.nn": ("manual_seed",),
    "psframework.parameter_server.handle": ("ParameterServer",),
    "psframework.parameter_server.partition": ("Balanced", "FixedShards", "Hash", "MaxSize", "MinSize"),
    "psframework.parameter_server.policy": ("ASP", "BSP", "SSP"),
    "psframework.rpc.functions.batching": ("batched",),
    "psframework.rpc.compute": ("compute",),
    "psframework.rpc.functions.context": ("current_caller",),
    "psframework.rpc.functions.future": ("Future",),
    "psframework.rpc.functions.pickled": ("pickled",),
    "psframework.rpc.registry": ("remote",),
    "psframework.rpc.values.types": ("register_type",),
    "psframework.rref.handle": ("RRef",),
}
_MODULES = ("autograd", "data", "ddp", "interop", "nn", "optim", "pipeline")
_HOME = {name: module for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker should still know which names there are

    def __getattr__(name: str) -> object:
        """Imports a public name on first use (PEP 562)."""
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        home = _HOME.get(name, "psframework.errors" if name in __all__ else "")
        if not home:
            advice = "" if name.startswith("_") else " (operations are in psf.ops, layers in psf.nn)"
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")
        value = globals()[name] = getattr(import_module(home), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__version__ = "0.1.0"

__all__ = [
    "ASP",
    "BSP",
    "SSP",
    "AddressInUse",
    "ArgumentError",
    "AutogradError",
    "Balanced",
    "CheckpointError",
    "Cluster",
    "CollectiveMismatch",
    "ConfigurationError",
    "ContextClosed",
    "ContextMismatch",
    "DataParallel",
    "DeadlineExceeded",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "Evicted",
    "FixedShards",
    "Function",
    "Future",
    "Hash",
    "LocalCluster",
    "MaxSize",
    "MinSize",
    "ModelMismatch",
    "NameTaken",
    "NotRegistered",
    "ParameterServer",
    "PartialFailure",
    "PeerLost",
    "PermissionDenied",
    "ProcessGroup",
    "PsfError",
    "RRef",
    "ReduceOp",
    "RemoteError",
    "RendezvousTimeout",
    "ResourceExhausted",
    "RolledBack",
    "ShardedOptimizer",
    "SparseRows",
    "StaleTerm",
    "Tensor",
    "UnknownTable",
    "WireError",
    "__version__",
    "autograd",
    "batched",
    "compute",
    "connect",
    "current_caller",
    "current_cluster",
    "data",
    "ddp",
    "detect_anomaly",
    "device",
    "enable_grad",
    "from_dlpack",
    "interop",
    "is_grad_enabled",
    "local_cluster",
    "manual_seed",
    "nn",
    "no_grad",
    "ops",
    "optim",
    "pickled",
    "pipeline",
    "recompute",
    "register_type",
    "remote",
    "tensor",
]
