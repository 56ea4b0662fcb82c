"""What every member does for others: it runs their calls, and keeps values for them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from psframework.cluster.current import enter
from psframework.collective.carrier import SERVICE as GROUPS
from psframework.dist_autograd.servicer import SERVICE as GRADIENTS
from psframework.dist_optim import owner as _owner  # noqa: F401 - registers what a DistributedOptimizer calls
from psframework.rpc.functions.execute import ExecuteOptions, Executor
from psframework.rpc.functions.remote_service import SERVICE as FUNCTIONS
from psframework.rpc.functions.remote_service import RemoteService
from psframework.rpc.security.allow import EVERYONE, AllowList
from psframework.rpc.service import Service
from psframework.rpc.session.accept import SERVICE as CALLS
from psframework.rref.control import SERVICE as RREFS

if TYPE_CHECKING:
    from psframework.cluster.handle import Cluster

OFFERED: Final = (CALLS, FUNCTIONS, RREFS, GRADIENTS, GROUPS)
"""Services of every member of a cluster, for reflection; the last three are mounted by its `Cluster`."""


class Remoting:
    """The services by which peers call this process. An async context manager; leaving ends what runs.

    Args:
        options: how much it takes on; None: the defaults.
        rules: who may call what.

    Attributes:
        cluster: what `psf.current_cluster()` is in the functions that run here; None in a process that runs
            alone.
    """

    def __init__(self, options: ExecuteOptions | None = None, rules: AllowList = EVERYONE) -> None:
        self.cluster: Cluster | None = None
        self.executor = Executor(options or ExecuteOptions(), enter=self._enter, rules=rules)
        self.functions = RemoteService(self.executor)
        self._stack = AsyncExitStack()

    @property
    def services(self) -> Sequence[Service]:
        """What peers call."""
        return (self.functions,)

    def drain(self) -> None:
        """The process is about to end: calls that come from now on are refused, those that run go on."""
        self.executor.drain(self.cluster.name if self.cluster is not None else "")

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.executor)
        await self._stack.enter_async_context(self.functions)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def _enter(self) -> None:
        """Runs in the context of each call."""
        enter(self.cluster)
