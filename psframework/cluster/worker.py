"""What a worker's process is made of: what every member does for others, with limits and rules of its own."""

from __future__ import annotations

from typing import TypeVar

from psframework.cluster.handle import Cluster
from psframework.cluster.remoting import OFFERED, Remoting
from psframework.cluster.service import Parts
from psframework.cluster.settings import WorkerSettings
from psframework.rpc.functions import pickled
from psframework.rpc.functions.execute import ExecuteOptions
from psframework.rpc.functions.pool import default_threads
from psframework.rpc.security.allow import AllowList
from psframework.rpc.session.agent import Agent

S = TypeVar("S", bound=WorkerSettings)
WAIT_SECONDS = 30.0  # default of waits of what runs here, such as for a barrier


async def build(parts: Parts[S]) -> None:
    """Opens it; in a cluster, functions find it by `psf.current_cluster()`."""
    settings = parts.settings
    if settings.cloudpickle:
        pickled.consent()
    remoting = Remoting(options_of(settings), AllowList(settings.allow))
    await parts.stack.enter_async_context(remoting)
    parts.services.extend(remoting.services)
    if settings.coordinator:
        parts.listed.extend(OFFERED)
    parts.on_drain.append(remoting.drain)
    parts.unfinished.append(lambda: remoting.functions.streams)
    parts.unfinished.append(lambda: remoting.executor.running)  # also those that nobody waits for any more

    async def joined(agent: Agent) -> None:
        if parts.membership is not None:
            cluster = Cluster(parts.membership, agent, "", WAIT_SECONDS, remoting)
            await cluster.open(parts.stack)
            parts.stack.push_async_callback(cluster.shutdown, graceful=False)

    parts.on_joined.append(joined)


def options_of(settings: WorkerSettings) -> ExecuteOptions:
    """How much it takes on, by its flags."""
    threads = settings.max_running or default_threads()
    return ExecuteOptions(threads=threads, max_calls=threads + settings.queue)
