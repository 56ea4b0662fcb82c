"""`psf.connect`: joins a cluster as a client, for as long as the `async with` block runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from psframework.cluster.agent import make_agent
from psframework.cluster.current import current
from psframework.cluster.directory import HERE, LISTENS
from psframework.cluster.handle import Cluster
from psframework.cluster.late import LateHandlers
from psframework.cluster.remoting import OFFERED, Remoting
from psframework.cluster.script import check_guarded
from psframework.cluster.settings import Settings
from psframework.cluster.token import find_token
from psframework.errors import ConfigurationError
from psframework.membership.client import JoinRequest, Membership
from psframework.rpc.process import configure_process
from psframework.rpc.security.credentials import Security, is_loopback
from psframework.rpc.serve import ServeOptions, Serving, serve

log = logging.getLogger(__name__)

TRAINER = "trainer"
_EXIT_SECONDS = 3.0
_SERVICE_ROLES = ("coordinator", "parameter-server", "pipeline-stage", "pipeline", "allreduce")


@asynccontextmanager
async def connect(
    address: str | Sequence[str] | None = None,
    name: str | None = None,
    job: str = "default",
    tls: str | Path | None = None,
    token: str | None = None,
    advertise: str | Sequence[str] | None = None,
    timeout: float = 30.0,
) -> AsyncIterator[Cluster]:
    """Joins the cluster: `async with psf.connect("127.0.0.1:7070") as cluster: ...`

    Args:
        address: HOST:PORT of the coordinator, or of several; None: PSF_COORDINATOR or psf.toml.
        name: this member's name, unique in the cluster; None: PSF_NAME, else `trainer-0`, `trainer-1`, ...
        job: scope of the names of models.
        tls: folder with ca.pem, cert.pem and key.pem; None: PSF_TLS_DIR, else plaintext.
        token: the cluster's bearer token; None: PSF_TOKEN or PSF_TOKEN_FILE, else the one that a local
            cluster of this user left for its address.
        advertise: HOST:PORT by which others reach this process; None: others call it over the connections
            that it opened, and where the coordinator is on this machine, others on it can connect too.
        timeout: seconds to get in, and the default of later waits.

    Raises:
        ConfigurationError: no address, or certificates that don't fit.
        DeadlineExceeded: no coordinator answered in time.
        NameTaken: a live member has the name.
        PermissionDenied: certificate or token were refused.
    """
    check_guarded("psf.connect()")
    settings = Settings.load(coordinator=address, name=name, tls_dir=tls, token=token)
    if not settings.coordinator:
        raise ConfigurationError("no coordinator: pass its address to psf.connect, or set PSF_COORDINATOR")
    configure_process(settings.local_processes)
    security = client_security(settings)
    listed = (advertise,) if isinstance(advertise, str) else tuple(advertise or ())
    role = client_role(settings)
    if role in _SERVICE_ROLES:
        raise ConfigurationError(
            f"{settings.tls_dir} holds the certificate of a service ({role}), and trainers would take this "
            "process for one: use a certificate of its own, from `psf certs issue trainer`"
        )
    async with AsyncExitStack() as stack:
        late, request = LateHandlers(), JoinRequest(role, settings.name, job, listed)
        server: Serving | None = None
        if listed:
            server = await stack.enter_async_context(_listen(late, security, listed[0]))
        elif all(is_loopback(address.rpartition(":")[0]) for address in settings.coordinator):
            server = await stack.enter_async_context(_listen(late, security, "127.0.0.1:0"))
            request = replace(request, advertise=(server.address,), labels={LISTENS: HERE})
        join = Membership.join(settings.coordinator, request, security, timeout)
        membership = await stack.enter_async_context(join)
        remoting = await stack.enter_async_context(Remoting())
        agent = make_agent(membership, security, settings, remoting.services)
        await stack.enter_async_context(agent)
        cluster = Cluster(membership, agent, job, timeout, remoting)
        if server is not None:
            agent.listen(server.host)
        await cluster.open(stack)
        late.handlers = agent.handlers()
        stack.push_async_exit(_leaving(cluster))
        async with _End(stack):
            with current(cluster):
                yield cluster


class _End:
    """Leaves in order when the program ends inside the block: `asyncio.run` cancels all tasks, and waits.

    Args:
        stack: what is to be closed.
    """

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._wait(), name="psf-end")

    async def __aexit__(self, *_: object) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _wait(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            if self._task is not None:
                self._task = None
                try:
                    async with asyncio.timeout(_EXIT_SECONDS):
                        await self._stack.pop_all().__aexit__(type(error), error, None)
                except TimeoutError:
                    log.warning("the program ended without leaving, and that took over %g s", _EXIT_SECONDS)
            raise


def _leaving(cluster: Cluster) -> Callable[..., Awaitable[None]]:
    async def leave(kind: type[BaseException] | None, *_: object) -> None:
        await cluster.leave(in_order=kind is None)

    return leave


def _listen(late: LateHandlers, security: Security, address: str) -> AbstractAsyncContextManager[Serving]:
    """Serves calls on the port of an address: on loopback if it is one, else on all interfaces."""
    host, _, port = address.rpartition(":")
    bind = f"{host if is_loopback(host) else '0.0.0.0'}:{port}"
    options = ServeOptions(announce=False, service_names=OFFERED)
    return serve([late], bind=bind, security=security, options=options)


def client_security(settings: Settings) -> Security:
    """What a client trusts and shows, by its settings; a local cluster's token is found by its address."""
    token = settings.token.get_secret_value() if settings.token else None
    if token is None and settings.token_file is None and settings.tls_dir is None:
        token = find_token(settings.coordinator)
    file = None if token else settings.token_file  # a token that was passed wins over a file
    return Security.from_settings(tls_dir=settings.tls_dir, token=token, token_file=file)


def client_role(settings: Settings) -> str:
    """The role in our certificate; "trainer" without one."""
    if settings.tls_dir is None:
        return TRAINER
    # Here, since plaintext starts without `cryptography`.
    from psframework.rpc.security.certificates import CERT, describe

    who = describe(settings.tls_dir / CERT).identity
    return who.role if who else TRAINER
