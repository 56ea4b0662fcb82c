"""The names and signatures that users' programs rely on (DESIGN section 5), as far as they are built."""

import inspect
import subprocess
import sys
from collections.abc import Callable

import pytest

import psframework as psf
from psframework import errors

NAMES = {
    # a cluster
    "Cluster", "LocalCluster", "compute", "connect", "current_cluster", "local_cluster",
    # calls
    "Future", "RRef", "batched", "current_caller", "pickled", "register_type", "remote",
    # process groups
    "DistributedDataParallel", "ProcessGroup", "ReduceOp", "DataParallel", "ShardedOptimizer", "ddp",
    # the distributed optimizer
    "DistributedOptimizer",
    # pipelines
    "pipeline",
    # the parameter server
    "ASP", "BSP", "SSP", "Balanced", "FixedShards", "Hash", "MaxSize", "MinSize", "ParameterServer",
    # tensors and models
    "Function", "Tensor", "autograd", "data", "device", "enable_grad", "is_grad_enabled", "manual_seed", "nn",
    "SparseRows", "detect_anomaly", "from_dlpack", "no_grad", "ops", "optim", "recompute", "tensor",
    "interop",
    # errors
    "AddressInUse", "ArgumentError", "AutogradError", "CheckpointError", "CollectiveMismatch",
    "ConfigurationError", "ContextClosed", "ContextMismatch", "DeadlineExceeded", "Evicted", "ModelMismatch",
    "NameTaken", "NotRegistered", "PartialFailure", "PeerLost", "PermissionDenied", "PsfError", "RemoteError",
    "RendezvousTimeout", "ResourceExhausted", "RolledBack", "StaleTerm", "UnknownTable", "WireError",
    "__version__",
}  # fmt: skip

# What callers may write. Further keyword-only parameters may follow; these keep name, place and default.
SIGNATURES: list[tuple[Callable[..., object], str]] = [
    (
        psf.connect,
        "address=None, name=None, job='default', tls=None, token=None, advertise=None, timeout=30.0",
    ),
    (psf.local_cluster, "parameter_servers=0, replicas=0, workers=0, stages=0, *, lanes=None"),
    (psf.Cluster.members, "self"),
    (psf.Cluster.barrier, "self, name, n"),
    (psf.Cluster.shutdown, "self, graceful=True, timeout=30.0"),
    (
        psf.Cluster.parameter_server,
        "self, model, name='model', optimizer=None, consistency=None, *, reader=False, keep=False",
    ),
    (
        psf.Cluster.process_group,
        "self, name='default', world_size=None, *, rank=None, deterministic=False, timeout=None",
    ),
    (psf.ParameterServer.pull, "self, *, timeout=None"),
    (psf.ParameterServer.push, "self, *, timeout=None"),
    (psf.ParameterServer.push_pull, "self, *, timeout=None"),
    (psf.ParameterServer.leave, "self"),
    (psf.ParameterServer.close, "self"),
    (psf.LocalCluster.restart, "self, name"),
    (psf.ASP, ""),
    (psf.BSP, "trainers=None, spares=0, on_loss='continue'"),
    (psf.SSP, "staleness=0"),
    (psf.batched, "function=None, /, *, max_size=64, max_wait=0.002"),
    (psf.compute, "fn, *args, **kwargs"),
    (psf.Cluster.rpc_async, "self, to, fn, args=(), kwargs=None, timeout=None, metadata=None"),
    (psf.Cluster.rpc_all, "self, to, fn, args=(), kwargs=None, timeout=None"),
    (psf.Cluster.rpc_stream, "self, to, fn, args=(), kwargs=None, timeout=None"),
    (psf.Cluster.remote, "self, to, fn, args=(), kwargs=None, timeout=None"),
    (psf.Cluster.rref, "self, value"),
    (psf.RRef.to_here, "self, timeout=None"),
    (psf.RRef.local_value, "self"),
    (psf.RRef.owner_name, "self"),
    (psf.RRef.is_owner, "self"),
    (psf.RRef.confirmed_by_owner, "self"),
    (psf.RRef.rpc_async, "self, timeout=None"),
    (psf.RRef.remote, "self, timeout=None"),
    (psf.current_caller, ""),
    (psf.remote, "target=None, /, *, idempotent=False, roles=(), name=None"),
    (psf.pickled, "fn"),
    (psf.register_type, "kind=None, /, *, name=None"),
    (psf.tensor, "data, requires_grad=False"),
    (psf.device, "name"),
    (psf.from_dlpack, "source, requires_grad=False"),
    (psf.manual_seed, "seed"),
    (psf.current_cluster, ""),
    (psf.Tensor.backward, "self"),
    (psf.nn.Linear, "in_features, out_features, bias=True"),
    (
        psf.nn.Conv2d,
        "in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True",
    ),
    (psf.nn.functional.cross_entropy, "input, target, *, reduction='mean'"),
    (psf.nn.functional.linear, "input, weight, bias=None"),
    (psf.nn.functional.mse_loss, "input, target, *, reduction='mean'"),
    (psf.optim.SGD, "params=None, lr=0.001, momentum=0, dampening=0, weight_decay=0, nesterov=False"),
    (psf.optim.Adam, "params=None, lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0"),
    (psf.optim.Adagrad, "params=None, lr=0.01, lr_decay=0"),
    (psf.DistributedOptimizer, "optimizer, items"),
    (
        psf.DistributedDataParallel,
        "module, group, bucket_cap_mb=25, hook=None, find_unused_parameters=False, static_graph=False",
    ),
    (psf.DistributedDataParallel.backward, "self, loss, seed=None, retain_graph=False"),
    (psf.DistributedDataParallel.no_sync, "self"),
    (psf.DistributedDataParallel.join, "self, divide_by_initial_world_size=True"),
    (psf.DistributedDataParallel.timeline, "self, path=None"),
    (psf.DistributedDataParallel.close, "self"),
    (psf.ShardedOptimizer, "optimizer, model, group"),
    (psf.DataParallel, "module, devices"),
    (
        psf.pipeline.balance,
        "model, sample, stages, *, by='time', loss=None, repetitions=5, memory_limit=None",
    ),
    (
        psf.Cluster.pipeline,
        "self, model, *, loss=None, schedule='1f1b', microbatches=8, optimizer=None, stages=None, "
        "virtual_stages=1",
    ),
    (psf.pipeline.Pipeline.step, "self, x, y, timeout=None, *, update=True"),
    (psf.pipeline.Pipeline.evaluate, "self, x, y, timeout=None"),
    (psf.pipeline.Pipeline.infer, "self, x, timeout=None"),
    (psf.pipeline.Pipeline.state_dict, "self, timeout=None"),
    (psf.pipeline.Pipeline.load_state_dict, "self, state, timeout=None"),
    (psf.pipeline.Pipeline.statistics, "self"),
    (psf.pipeline.Pipeline.timeline, "self, path=None"),
    (psf.pipeline.Pipeline.close, "self"),
    (psf.pipeline.skippable, "stash=(), pop=()"),
    (psf.pipeline.stash, "name, tensor"),
    (psf.pipeline.pop, "name"),
    (psf.ShardedOptimizer.step, "self, scaler=None, timeout=None"),
    (psf.ddp.hooks.FP16, "error_feedback=True"),
    (psf.ddp.hooks.PowerSGD, "rank=2, start=10"),
    (psf.ddp.hooks.TopK, "ratio=0.01"),
    (psf.DistributedOptimizer.step, "self, ctx, max_norm=None"),
    (psf.data.digits, ""),
    (psf.data.batches, "x, y, batch_size"),
    (psf.data.ShardedSampler, "n, rank=0, size=1, seed=0"),
]


def test_names() -> None:
    assert set(psf.__all__) == NAMES
    assert len(psf.__all__) == len(NAMES)
    for name in NAMES:
        assert getattr(psf, name) is not None
    assert set(dir(psf)) >= NAMES
    with pytest.raises(AttributeError, match=r"psframework.*no_such_name"):
        psf.no_such_name  # noqa: B018


def test_every_error_is_public() -> None:
    declared = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert declared <= NAMES
    assert all(issubclass(getattr(psf, name), psf.PsfError) for name in declared)


@pytest.mark.parametrize(("function", "expected"), SIGNATURES, ids=lambda v: getattr(v, "__qualname__", ""))
def test_signatures(function: Callable[..., object], expected: str) -> None:
    wanted = inspect.signature(eval(f"lambda {expected}: 0"))
    found = inspect.signature(function).parameters
    for place, (name, parameter) in enumerate(wanted.parameters.items()):
        assert name in found, f"{name} is missing"
        mine = found[name]
        assert mine.default == parameter.default, f"{name}={mine.default!r}"
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            assert list(found)[place] == name, f"{name} is at another place"
            assert mine.kind == parameter.kind
        else:
            assert mine.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    extra = [p for name, p in found.items() if name not in wanted.parameters]
    assert all(p.default is not p.empty or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in extra), extra


@pytest.mark.parametrize("kind", ["ParameterServer", "LocalCluster", "ProcessGroup", "Pipeline", "RRef"])
def test_handles_are_async_context_managers(kind: str) -> None:
    assert {"__aenter__", "__aexit__"} <= set(dir(getattr(psf, kind, None) or getattr(psf.pipeline, kind)))


def test_a_name_that_is_not_here_says_where_to_look() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'exp' \(operations are in psf\.ops"):
        _ = psf.exp  # type: ignore[attr-defined]
    assert not hasattr(psf, "__wrapped__")


def test_importing_is_quiet_and_needs_no_extra() -> None:
    """No CuPy, no torch, no matplotlib, and nothing on the terminal."""
    code = (
        "import sys, psframework as psf, psframework.nn.functional as F\n"
        "psf.connect, psf.ParameterServer, psf.nn.Linear, psf.optim.Adam, psf.data.digits\n"
        "assert not {'cupy', 'torch', 'matplotlib', 'typer'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
