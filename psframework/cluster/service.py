"""A service process from its flags to its exit: bind, join, serve, drain. `services/` holds only mains.

The port is bound first, since others must be told of it when the process joins; calls that come before it has
joined are answered with UNAVAILABLE, which callers retry.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from psframework.cluster.agent import make_agent
from psframework.cluster.late import LateHandlers
from psframework.cluster.script import import_module
from psframework.cluster.settings import ServiceSettings
from psframework.cluster.token import find_token
from psframework.errors import Evicted, PsfError
from psframework.membership.client import JoinRequest, Membership
from psframework.observe.logs import announce, configure_logging, get_logger
from psframework.rpc.call import PeerInfo
from psframework.rpc.process import configure_process, exit_with_parent
from psframework.rpc.security.credentials import Security
from psframework.rpc.serve import ServeOptions, Serving, parse_address, serve
from psframework.rpc.service import Service
from psframework.rpc.session.accept import SERVICE as CALL_SERVICE
from psframework.rpc.session.agent import Agent

S = TypeVar("S", bound=ServiceSettings)
COORDINATOR = "coordinator"
_LEAVE_SECONDS = 0.75


@dataclass
class Parts(Generic[S]):
    """What a service is made of; its `build` function fills it in.

    Attributes:
        settings: its flags.
        security: certificates and token.
        stack: closes, in reverse, what the service opened.
        services: typed services, offered on the call stream and as unary methods.
        listed: names of services that are mounted once it has joined.
        servicers: ordinary gRPC servicers, each with the generated function that adds it to a server.
        on_drain: called when the process has been told to end, while calls are still answered.
        unfinished: tell how much must come to its end before the process does, beside calls that run.
        on_joined: awaited with the agent, once this process is in the cluster and before it serves.
        membership: this process in the cluster; None before it joined, and in a service that runs alone.
        agent: its calls; None before it joined.
    """

    settings: S
    security: Security
    stack: AsyncExitStack
    services: list[Service] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    servicers: list[tuple[Callable[..., None], object]] = field(default_factory=list)
    on_drain: list[Callable[[], None]] = field(default_factory=list)
    unfinished: list[Callable[[], int]] = field(default_factory=list)
    on_joined: list[Callable[[Agent], Awaitable[None]]] = field(default_factory=list)
    membership: Membership | None = None
    agent: Agent | None = None

    def may_serve(self) -> bool:
        """Whether this process holds its lease; one that runs alone needs none."""
        return self.membership is None or self.membership.holds_lease

    def idle(self) -> bool:
        """Whether nothing runs here for a peer."""
        peers = self.agent.peers if self.agent is not None else ()
        running = any(peer.statistics()["served"] for peer in peers)
        return not running and not any(count() for count in self.unfinished)


Build = Callable[[Parts[S]], Awaitable[None]]


def run_service(role: str, settings_type: type[S], build: Build[S]) -> None:
    """The main of a service: reads the command line, runs until SIGTERM, and exits.

    Args:
        role: its role; also the name of a service that runs without a coordinator.
        settings_type: its flags.
        build: opens what the service is made of.
    """
    try:
        program = sys.argv[0] if sys.argv[0].startswith("psf ") else f"python -m services.{_module(role)}"
        settings = settings_type.from_command_line(sys.argv[1:], program)
        _prepare(settings)
        _run_to_its_end(_run(role, settings, build))
    except PsfError as error:
        sys.exit(_complaint(error))


def _run_to_its_end(main: Coroutine[Any, Any, None]) -> None:
    """As `asyncio.run`, but `sys.exit` in a task that a remote function has started does not end the service.

    asyncio lets it out of the loop, after it has become the outcome of the task: whoever awaits that has it.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(main)
        while True:
            try:
                return loop.run_until_complete(task)
            except SystemExit as error:
                if task.done():
                    raise
                get_logger(__name__).warning(
                    "a task called sys.exit, which ends only that task", code=error.code
                )


def _prepare(settings: ServiceSettings) -> None:
    """Before there is a loop, in which a module that runs a program of its own could not even complain."""
    configure_logging()
    configure_process(settings.local_processes, service=True)
    exit_with_parent()
    for module in settings.import_modules:
        import_module(module)


async def _run(role: str, settings: S, build: Build[S]) -> None:
    security = Security.from_settings(
        tls_dir=settings.tls_dir, token=_secret(role, settings), token_file=settings.token_file
    )
    host, _ = parse_address(settings.bind)
    security.check_bind(host, plaintext_ok=settings.plaintext)  # before anything is left on disk
    async with AsyncExitStack() as stack:
        parts = Parts(settings, security, stack)
        await build(parts)
        server, late = await _bind(parts)
        ending = asyncio.create_task(server.wait_stopped(), name="psf-ending")
        draining = asyncio.create_task(_tell_drain(parts, server), name="psf-draining")
        for task in (ending, draining):
            stack.push_async_callback(_cancel, task)
        await asyncio.sleep(0)  # it handles signals from here on
        announce(f"serving on {server.address}")
        living = asyncio.create_task(_live(role, parts, server, late), name="psf-living")
        stack.push_async_callback(_cancel, living)
        await asyncio.wait({ending, living}, return_when=asyncio.FIRST_COMPLETED)
        if living.done():
            living.result()


async def _live(role: str, parts: Parts[S], server: Serving, late: LateHandlers) -> None:
    """Joins the cluster, if there is one, and lets calls in; ends only when the cluster has given us up.

    Raises:
        Evicted: the lease ran out. What is held here may be out of date, so only a new process can join.
    """
    evicted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def give_up(error: Evicted) -> None:
        if not evicted.done():
            evicted.set_exception(error)

    if role != COORDINATOR and parts.settings.coordinator:
        parts.membership = await parts.stack.enter_async_context(_join(parts, role, server.address))
        parts.membership.on_evicted(give_up)
        parts.stack.push_async_callback(_leave, parts.membership)
    parts.agent = await parts.stack.enter_async_context(_agent(role, parts))
    parts.agent.listen(server.host, _socket_ports(parts.settings.port_range))
    parts.on_drain.append(parts.agent.drain)
    for hook in parts.on_joined:
        await hook(parts.agent)
    late.handlers = parts.agent.handlers()
    await server.set_serving(True)
    if parts.membership is not None:
        announce(f"joined as {parts.membership.member.name}")
    elif role != COORDINATOR:
        get_logger(__name__).warning(
            "in no cluster: no coordinator was given", fix="--coordinator HOST:PORT or PSF_COORDINATOR"
        )
    await evicted


def _socket_ports(port_range: tuple[int, int] | None) -> Sequence[int]:
    """From the end, since other services look for theirs from the beginning."""
    return range(port_range[1], port_range[0] - 1, -1) if port_range else (0,)


async def _leave(membership: Membership) -> None:
    """Leaves in good time: a coordinator that is gone too must not keep us from ending within 5 s."""
    await membership.leave(_LEAVE_SECONDS)


async def _tell_drain(parts: Parts[S], server: Serving) -> None:
    await server.draining.wait()
    for hook in parts.on_drain:
        hook()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _bind(parts: Parts[S]) -> tuple[Serving, LateHandlers]:
    """Listens, and says so; health is NOT_SERVING until the process has joined."""
    settings, late = parts.settings, LateHandlers()
    options = ServeOptions(
        port_range=settings.port_range,
        plaintext_ok=settings.plaintext,
        max_request=settings.max_request,
        service_names=(CALL_SERVICE, *(service.name for service in parts.services), *parts.listed),
        idle=parts.idle,
        announce=False,
    )
    server = await parts.stack.enter_async_context(
        serve([late], servicers=parts.servicers, bind=settings.bind, security=parts.security, options=options)
    )
    await server.set_serving(False)
    return server, late


def _join(parts: Parts[S], role: str, bound: str) -> Membership:
    settings = parts.settings
    request = JoinRequest(role, settings.name, "", settings.advertise or (reachable(bound),), settings.lease)
    return Membership.join(settings.coordinator, request, parts.security, settings.join_timeout)


def reachable(bound: str) -> str:
    """An address by which others may reach what is bound to `bound`: a wildcard becomes the host's name."""
    host, _, port = bound.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in ("0.0.0.0", "[::]", "::", "") else bound


def _agent(role: str, parts: Parts[S]) -> Agent:
    if parts.membership is not None:
        return make_agent(parts.membership, parts.security, parts.settings, parts.services)
    identity = PeerInfo(parts.settings.name or role, role, "", secrets.randbits(63))
    return Agent(identity, security=parts.security, services=parts.services)


def _secret(role: str, settings: ServiceSettings) -> str | None:
    """Its token; of the local cluster that it joins, if it is told none."""
    if settings.token is not None:
        return settings.token.get_secret_value()
    if role == COORDINATOR or settings.token_file is not None or settings.tls_dir is not None:
        return None
    return find_token(settings.coordinator)


def _module(role: str) -> str:
    return role.replace("-", "_")


def _complaint(error: PsfError) -> int:
    """One line instead of a traceback; status 2, as for a wrong flag."""
    print(f"error: {error}", file=sys.stderr, flush=True)
    return 2
