"""A cluster of real processes on this machine, for tests, notebooks and `psf demo`; no Docker.

The services are started by module name, never by forking or importing the calling script, so a script without
a main guard is not run again. They bind loopback only and take a random token that only this user can read.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from psframework.cluster.process import ServiceProcess
from psframework.cluster.token import publish_token, withdraw_token
from psframework.errors import ArgumentError, NotRegistered
from psframework.rpc.security import new_token, write_token
from psframework.wire.lanes import parse

_START_SECONDS = 60.0
_STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """How many services of each kind, and the lanes they offer (None: all that this machine can)."""

    parameter_servers: int = 0
    lanes: str | None = None
    bind: str = "127.0.0.1:0"  # of the coordinator


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
        token_file = self._folder / "token"
        write_token(token_file, self.token)
        common = ["--token-file", str(token_file)]
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
        shards = []
        for index in range(self._options.parameter_servers):
            name = f"parameter-server-{index}"
            shards.append(self._add(name, "services.parameter_server", [*common, "--name", name]))
            shards[-1].start()
        await asyncio.gather(*(shard.wait_serving(_START_SECONDS, joined=True) for shard in shards))

    def _add(self, name: str, module: str, arguments: Sequence[str]) -> ServiceProcess:
        process = self.processes[name] = ServiceProcess(name, module, arguments)
        return process

    def _computing(self) -> int:
        """How many processes share the cores: told by PSF_LOCAL_PROCESSES, else the services that compute."""
        told = os.environ.get("PSF_LOCAL_PROCESSES", "")
        return int(told) if told.isdigit() and int(told) > 0 else max(1, self._options.parameter_servers)

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


def local_cluster(
    parameter_servers: int = 0,
    replicas: int = 0,
    workers: int = 0,
    stages: int = 0,
    *,
    lanes: str | Sequence[str] | None = None,
) -> LocalCluster:
    """Starts a coordinator and services as real processes: `async with psf.local_cluster(...) as local`.

    Leaving ends them and never raises for those that are already gone. If this process dies, so do they.

    Args:
        parameter_servers: shards of the parameter server, named parameter-server-0, ...
        replicas, workers, stages: kinds of processes that this version does not have yet; must be 0.
        lanes: lanes the services offer, e.g. "inline,striped"; None: all that this machine can.

    Raises:
        ConfigurationError: a lane of another name.
        ArgumentError: a negative count, or a kind of process that this version does not have.
    """
    for kind, count in (("replicas", replicas), ("workers", workers), ("stages", stages)):
        if count:
            raise ArgumentError(
                f"local_cluster({kind}={count}): this version has no such service yet; leave it 0"
            )
    if parameter_servers < 0:
        raise ArgumentError(
            f"local_cluster(parameter_servers={parameter_servers}): a count can't be negative"
        )
    offered = lanes if lanes is None or isinstance(lanes, str) else ",".join(lanes)
    if offered is not None:
        parse(offered)
    return LocalCluster(LocalOptions(parameter_servers=parameter_servers, lanes=offered))


def _with_bind(arguments: Sequence[str], address: str) -> tuple[str, ...]:
    changed = list(arguments)
    changed[changed.index("--bind") + 1] = address
    return tuple(changed)
