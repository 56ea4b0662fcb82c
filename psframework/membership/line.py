"""A client's line to the coordinator: several addresses, retries until a deadline, and terms."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, Self, TypeVar

import grpc
from google.protobuf.message import Message

from psframework.errors import (
    ConfigurationError,
    ContextClosed,
    DeadlineExceeded,
    NotRegistered,
    PeerLost,
    PermissionDenied,
    PsfError,
    StaleTerm,
)
from psframework.rpc.deadline import Deadline, boottime
from psframework.rpc.security.credentials import Security
from psframework.rpc.status import DETAILS_KEY, from_rpc_error, was_cut_off

log = logging.getLogger(__name__)
SERVICE = "/psframework.proto.v1.CoordinatorService/"
ROLE = "coordinator"
ATTEMPT_SECONDS = 10.0  # then another address is tried
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5  # seconds between attempts
SILENCE_SECONDS = 2.0  # without any answer ever, after which that is told
REFUSALS, REFUSAL_SECONDS = 5, 2.0  # cut off so often, for so long, before any answer: no accident


class _Termed(Protocol):
    @property
    def term(self) -> int: ...


M = TypeVar("M", bound=Message)


class Terms:
    """The highest term seen; used by the loop and by the heartbeat thread."""

    def __init__(self) -> None:
        self.highest = 0
        self._lock = threading.Lock()

    def observe(self, response: _Termed | Message, address: str) -> None:
        """Takes note of a response's term; StaleTerm if it is of an older one."""
        term = int(getattr(response, "term", 0))
        with self._lock:
            if term < self.highest:
                raise StaleTerm(f"{address} answered in term {term}, but term {self.highest} has begun")
            self.highest = term


class Addresses:
    """Addresses to be tried in order, staying with the one that works."""

    def __init__(self, addresses: Sequence[str]) -> None:
        if not addresses:
            raise ConfigurationError("no coordinator address: give one, or set PSF_COORDINATOR")
        self.all = tuple(addresses)
        self._index = 0

    @property
    def current(self) -> str:
        """The address to use now."""
        return self.all[self._index % len(self.all)]

    def failed(self, address: str) -> None:
        """Moves on, unless somebody else already did."""
        if address == self.current:
            self._index += 1


class Line:
    """Calls to the coordinator from the event loop; an async context manager.

    Every method of the coordinator may be repeated, so calls are retried until their deadline.
    """

    def __init__(self, addresses: Sequence[str], security: Security, terms: Terms | None = None) -> None:
        self.addresses = Addresses(addresses)
        self.security = security
        self.terms = terms or Terms()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        deadline: Deadline,
        *,
        patient: bool = False,
        before: Callable[[], None] | None = None,
    ) -> M:
        """Calls a method until it is answered.

        Args:
            method: "Join"; or "/service/Method" of another service beside the coordinator.
            request: its request; the term is filled in.
            response_type: class of the response.
            deadline: for all attempts together.
            patient: the call itself may take long, so no attempt is given up before the deadline.
            before: called before each attempt, to bring the request up to date.

        Raises:
            DeadlineExceeded: nobody answered; tells the last error.
            PermissionDenied: somebody listens, but ends each connection before an answer.
            ContextClosed: the line was closed meanwhile.
            PsfError: what the coordinator answered.
        """
        pause, last, refused = FIRST_PAUSE, "no attempt was made", _Refusals()
        silence = boottime() + SILENCE_SECONDS
        while not deadline.expired:
            address = self.addresses.current
            timeout = deadline.seconds() if patient else min(deadline.remaining(), ATTEMPT_SECONDS)
            if before is not None:
                before()
            try:
                return await self._attempt(address, method, request, response_type, timeout)
            except (StaleTerm, _Unanswered) as error:
                last = str(error)
                self.addresses.failed(address)
                if refused.count(error) and self.terms.highest == 0:
                    raise PermissionDenied(self._turned_away(last)) from None
                if self.terms.highest == 0 and boottime() >= silence:  # the address may be wrong
                    log.warning("no answer yet, for %.0f s more: %s", deadline.remaining(), last)
                    silence = math.inf
            except NotRegistered as error:
                if method == "Join":
                    raise NotRegistered(f"{address} is no coordinator: {error}") from None
                raise
            await asyncio.sleep(min(pause * random.uniform(0.5, 1.0), deadline.remaining()))
            pause = min(pause * 2, LONGEST_PAUSE)
        raise DeadlineExceeded(f"no coordinator at {', '.join(self.addresses.all)} answered {method}: {last}")

    async def stream(self, method: str, request: Message, response_type: type[M]) -> AsyncIterator[M]:
        """Yields a stream's messages until it breaks, with a PsfError; it is not reopened."""
        address = self.addresses.current
        request.term = self.terms.highest  # type: ignore[attr-defined]
        call = self._channel(address).unary_stream(
            SERVICE + method, type(request).SerializeToString, response_type.FromString
        )(request)
        try:
            async for response in call:
                self.terms.observe(response, address)
                yield response
            raise PeerLost(f"{address} ended {method}", peer=ROLE)
        except grpc.aio.AioRpcError as error:
            self.addresses.failed(address)
            raise from_rpc_error(error, peer=f"coordinator {address}", hint=self.security.hint) from None
        except PsfError:
            self.addresses.failed(address)
            raise
        finally:
            call.cancel()  # an abandoned streaming call is never collected

    async def _attempt(
        self, address: str, method: str, request: Message, response_type: type[M], timeout: float | None
    ) -> M:
        request.term = self.terms.highest  # type: ignore[attr-defined]
        path = method if method.startswith("/") else SERVICE + method
        call = self._channel(address).unary_unary(
            path, type(request).SerializeToString, response_type.FromString
        )
        try:
            response = await call(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            failure = from_rpc_error(error, peer=f"coordinator {address}", hint=self.security.hint)
            if _is_silence(failure, error):
                raise _Unanswered(str(failure), cut_off=was_cut_off(error)) from None
            raise failure from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise self._gone() from None  # gRPC's word for a call whose channel was closed
            raise
        self.terms.observe(response, address)
        return response

    def _turned_away(self, last: str) -> str:
        return f"the coordinator at {', '.join(self.addresses.all)} ends every connection: {last}"

    def _gone(self) -> ContextClosed:
        return ContextClosed("this process has left the cluster: connect again")

    def _channel(self, address: str) -> grpc.aio.Channel:
        if self._closed:
            raise self._gone()
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self.security.channel(address, role=ROLE)
        return channel


class _Unanswered(Exception):
    """One attempt broke or took too long; `cut_off`: somebody had accepted the connection."""

    def __init__(self, message: str, *, cut_off: bool) -> None:
        super().__init__(message)
        self.cut_off = cut_off


class _Refusals:
    """Counts connections in a row that somebody accepted and then ended."""

    def __init__(self) -> None:
        self._count = 0
        self._since = 0.0

    def count(self, error: Exception) -> bool:
        """Takes note of a failed attempt; True once that can be no accident."""
        if not (isinstance(error, _Unanswered) and error.cut_off):
            self._count = 0
            return False
        self._count += 1
        if self._count == 1:
            self._since = boottime()
        return self._count >= REFUSALS and boottime() - self._since >= REFUSAL_SECONDS


def _is_silence(failure: PsfError, error: grpc.aio.AioRpcError) -> bool:
    """Whether nobody decided anything: the connection broke, or the server is ending.

    A PeerLost that names somebody is an answer: a barrier's, about the member that died in it.
    """
    answered = any(key == DETAILS_KEY for key, _ in error.trailing_metadata() or ())
    ending = isinstance(failure, PeerLost) and not failure.peer
    return isinstance(failure, PeerLost | DeadlineExceeded) and (ending or not answered)
