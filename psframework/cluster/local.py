"""A cluster of real processes on this machine, for tests, notebooks and `psf demo`; no Docker.

The services are started by module name, never by forking. Workers, pipeline stages and their drivers import
the calling script, to know its functions; other services don't. All bind loopback, and ask for a random token
that only this user can read.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict, Unpack

from psframework.cluster.process import ServiceProcess
from psframework.cluster.script import calling_script, check_guarded, import_path
from psframework.cluster.token import publish_token, withdraw_token
from psframework.errors import ArgumentError, NotRegistered
from psframework.rpc.security.credentials import new_token, write_token
from psframework.wire.lanes import parse

_START_SECONDS = 60.0
_STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """What a local cluster consists of.

    Args:
        parameter_servers, workers, allreduce, stages, pipelines: how many services of each kind.
        lanes: the lanes they offer; None: all that this machine can.
        bind: of the coordinator.
        imports: modules that workers, stages and drivers of pipelines import at their start.
        worker_flags: further flags of each of these.
        local_processes: how many processes share the cores; None: the services that compute.
        on_line: called with (process, line) for each line that one writes, in a thread of this process.
    """

    parameter_servers: int = 0
    lanes: str | None = None
    bind: str = "127.0.0.1:0"
    workers: int = 0
    allreduce: int = 0
    imports: tuple[str, ...] = ()
    worker_flags: tuple[str, ...] = ()
    local_processes: int | None = None
    on_line: Callable[[str, str], object] | None = None
    stages: int = 0
    pipelines: int = 0

    @property
    def computing(self) -> int:
        """How many of the services compute for long; the others need little of the cores."""
        return self.parameter_servers + self.workers + self.stages

    @property
    def services(self) -> dict[str, tuple[str, list[str], dict[str, str]]]:
        """Name -> (module, flags of its own, environment), of all but the coordinator."""
        imports = [flag for module in self.imports for flag in ("--import", module)]
        running = [*imports, *self.worker_flags], {"PYTHONPATH": import_path()}  # of those that run functions
        kinds: list[tuple[str, str, int, tuple[list[str], dict[str, str]]]] = [
            ("parameter-server", "parameter_server", self.parameter_servers, ([], {})),
            ("allreduce", "allreduce", self.allreduce, ([], {})),
            ("worker", "worker", self.workers, running),
            ("stage", "pipeline_stage", self.stages, running),
            ("pipeline", "pipeline", self.pipelines, running),
        ]
        return {
            f"{stem}-{index}": (f"services.{module}", *own)
            for stem, module, count, own in kinds
            for index in range(count)
        }


class LocalCluster:
    """Running processes of a local cluster; made by `local_cluster`.

    Attributes:
        address: HOST:PORT of the coordinator, for `psf.connect`.
        processes: name -> process, with `.pid`, `.kill()` and `.alive`.
        token: bearer token of the cluster; `psf.connect` of the same user finds it by itself.
    """

    def __init__(self, options: LocalOptions):
        self.address = ""
        self.processes: dict[str, ServiceProcess] = {}
        self.token = new_token()
        self._options = options
        self._folder: Path | None = None
        self._published: Path | None = None

    async def __aenter__(self) -> Self:
        check_guarded("psf.local_cluster()")
        self._folder = Path(tempfile.mkdtemp(prefix="psf-local-"))
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    @property
    def token_file(self) -> Path:
        """Where processes of this cluster read its token."""
        assert self._folder is not None
        return self._folder / "token"

    async def restart(self, name: str) -> None:
        """Ends the process `name` if it lives, and starts it again under the same name, port and flags.

        Raises:
            NotRegistered: there is no such process; the message lists those that exist.
            PeerLost, DeadlineExceeded: the new process did not come up.
        """
        process = self.processes.get(name)
        if process is None:
            raise NotRegistered(f"no process {name!r} in this cluster; there are {', '.join(self.processes)}")
        await process.stop(_STOP_SECONDS)
        process.arguments = _with_bind(process.arguments, process.address)
        process.start()
        await process.wait_serving(_START_SECONDS, joined=name != "coordinator")

    async def _start(self) -> None:
        assert self._folder is not None
        write_token(self.token_file, self.token)
        common = ["--token-file", str(self.token_file)]
        if self._options.lanes is not None:
            common += ["--lanes", self._options.lanes]
        state = self._folder / "coordinator.sqlite"
        own = [*common, "--bind", self._options.bind, "--state", str(state)]
        coordinator = self._add("coordinator", "services.coordinator", own)
        coordinator.start()
        self.address = await coordinator.wait_serving(_START_SECONDS)
        self._published = publish_token(self.address, self.token)
        common += [
            "--bind",
            "127.0.0.1:0",
            "--coordinator",
            self.address,
            "--local-processes",
            str(self._computing()),
        ]
        for name, (module, flags, environment) in self._options.services.items():
            self._add(name, module, [*common, "--name", name, *flags], environment).start()
        others = [process for process in self.processes.values() if process is not coordinator]
        await asyncio.gather(*(process.wait_serving(_START_SECONDS, joined=True) for process in others))

    def _add(
        self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> ServiceProcess:
        told = self._options.on_line
        process = self.processes[name] = ServiceProcess(
            name,
            module,
            arguments,
            environment=environment,
            on_line=functools.partial(told, name) if told is not None else None,
        )
        return process

    def _computing(self) -> int:
        """How many processes share the cores: told by PSF_LOCAL_PROCESSES, else the services that compute."""
        told = os.environ.get("PSF_LOCAL_PROCESSES", "")
        if told.isdigit() and int(told) > 0:
            return int(told)
        return self._options.local_processes or max(1, self._options.computing)

    async def _stop(self) -> None:
        """Ends all processes, the coordinator last, so that the others can still say that they leave."""
        coordinator = self.processes.get("coordinator")
        others = [process for process in self.processes.values() if process is not coordinator]
        await asyncio.shield(_stop_all(others, coordinator))
        if self._published is not None:
            withdraw_token(self._published)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


async def _stop_all(others: Sequence[ServiceProcess], coordinator: ServiceProcess | None) -> None:
    await asyncio.gather(*(process.stop(_STOP_SECONDS) for process in others))
    if coordinator is not None:
        await coordinator.stop(_STOP_SECONDS)


class FurtherServices(TypedDict, total=False):
    """How many services `local_cluster` starts of the kinds that it has no parameter for."""

    allreduce: int
    pipelines: int


def local_cluster(
    parameter_servers: int = 0,
    replicas: int = 0,
    workers: int = 0,
    stages: int = 0,
    *,
    lanes: str | Sequence[str] | None = None,
    imports: Sequence[str] = (),
    **further: Unpack[FurtherServices],
) -> LocalCluster:
    """Starts a coordinator and services as real processes: `async with psf.local_cluster(...) as local`.

    Leaving ends them and never raises for those that are already gone. If this process dies, so do they.

    Args:
        parameter_servers: shards of the parameter server, named parameter-server-0, ...
        workers: processes that run functions for others, named worker-0, ... They import the calling script
            under the name of its file, so its program must stand under `if __name__ == "__main__":`.
        replicas: a kind of processes that this version does not have yet; must be 0.
        stages: pipeline stages, named stage-0, ... They import what workers import.
        lanes: lanes the services offer, e.g. "inline,striped"; None: all that this machine can.
        imports: further modules that workers import, by name; they find what this process finds.
        allreduce: services that reduce arrays centrally, named allreduce-0, ...
        pipelines: drivers of pipelines, named pipeline-0, ... They import what workers import.

    Raises:
        ConfigurationError: a lane of another name.
        ArgumentError: a negative count, or a kind of process that this version does not have.
        PeerLost (on entering): a service ended before it was ready; the message has its last words.
    """
    if replicas:
        raise ArgumentError(f"local_cluster(replicas={replicas}): this version has none yet; leave it 0")
    counts = {"parameter_servers": parameter_servers, "workers": workers, "stages": stages}
    counts |= {"allreduce": further.pop("allreduce", 0), "pipelines": further.pop("pipelines", 0)}
    if further:
        raise TypeError(f"local_cluster() got an unexpected keyword argument {next(iter(further))!r}")
    for kind, count in counts.items():
        if count < 0:
            raise ArgumentError(f"local_cluster({kind}={count}): a count can't be negative")
    offered = lanes if lanes is None or isinstance(lanes, str) else ",".join(lanes)
    if offered is not None:
        parse(offered)
    modules = (imports,) if isinstance(imports, str) else tuple(imports)
    script = calling_script() if workers or stages or counts["pipelines"] else None
    if script is not None:
        modules = (script, *(module for module in modules if module != script))
    options = LocalOptions(
        parameter_servers,
        offered,
        workers=workers,
        imports=modules,
        stages=stages,
        allreduce=counts["allreduce"],
        pipelines=counts["pipelines"],
    )
    return LocalCluster(options)


def _with_bind(arguments: Sequence[str], address: str) -> tuple[str, ...]:
    changed = list(arguments)
    changed[changed.index("--bind") + 1] = address
    return tuple(changed)
