"""Renews a lease on a thread of its own, so that a busy event loop never looks like a dead process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import cast

import grpc

from psframework.errors import Evicted, PsfError
from psframework.membership.lease import HeldLease, renewal_interval
from psframework.membership.line import ROLE, SERVICE, Addresses, Terms
from psframework.proto.v1 import coordinator_pb2 as pb
from psframework.rpc.deadline import Clock, boottime
from psframework.rpc.security.credentials import Security
from psframework.rpc.status import RpcFailure, from_rpc_error

log = logging.getLogger(__name__)
RETRY = 0.2  # seconds after a renewal that failed


class Heartbeat:
    """One thread, one synchronous channel, one renewal at a time.

    Args:
        addresses: of coordinators, tried in order.
        security: for the channel.
        terms: shared with the loop's line.
        incarnation: whose lease it is.
        lease: prolonged with each answer.
        tick: how often the event loop has turned.
        on_evicted: called once, in this thread, when the coordinator says that the lease is over.
    """

    def __init__(
        self,
        addresses: Addresses,
        security: Security,
        terms: Terms,
        *,
        incarnation: int,
        lease: HeldLease,
        tick: Callable[[], int],
        on_evicted: Callable[[Evicted], None],
    ) -> None:
        self._addresses = Addresses(addresses.all)
        self._security = security
        self._terms = terms
        self._incarnation = incarnation
        self._lease = lease
        self._tick = tick
        self._on_evicted = on_evicted
        self._clock: Clock = boottime
        self._wake = threading.Event()
        self._stopping = False
        self._call: grpc.Future[pb.RenewResponse] | None = None
        self._channel: tuple[str, grpc.Channel] | None = None
        self._thread = threading.Thread(target=self._run, name="psf-heartbeat", daemon=True)

    def start(self) -> None:
        """Begins to renew."""
        self._thread.start()

    def kick(self) -> None:
        """Renews at once: the coordinator may have seen our connection close."""
        self._wake.set()

    def stop(self) -> None:
        """Stops, giving up a renewal that is under way; waits for the thread."""
        self._stopping = True
        self._wake.set()
        call = self._call
        if call is not None:
            call.cancel()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.clear()
                pause = self._renew()
                self._wake.wait(pause)
        finally:
            self._close()

    def _renew(self) -> float:
        """Renews once; returns the seconds until the next time."""
        sent_at, address = self._clock(), self._addresses.current
        try:
            response = self._send(address)
            self._terms.observe(response, address)
        except Evicted as error:
            self._stopping = True
            self._on_evicted(error)
            return 0.0
        except PsfError as error:
            if not self._stopping:
                log.debug("renewal failed: %s", error)
            self._addresses.failed(address)
            return min(RETRY, renewal_interval(self._lease.seconds))
        except Exception:  # a thread or descriptor too many, say; without this thread the member is lost
            log.exception("renewal failed")
            return RETRY
        self._lease.answered(sent_at, response.lease_seconds)
        return renewal_interval(self._lease.seconds)

    def _send(self, address: str) -> pb.RenewResponse:
        request = pb.RenewRequest(incarnation=self._incarnation, tick=self._tick(), term=self._terms.highest)
        call = self._open(address).unary_unary(
            SERVICE + "Renew", pb.RenewRequest.SerializeToString, pb.RenewResponse.FromString
        )
        timeout = max(0.5, self._lease.seconds / 2)
        self._call = call.future(request, timeout=timeout)
        try:
            if self._stopping:  # `stop` may have looked for the call before it was there
                self._call.cancel()
            return self._call.result()
        except grpc.FutureCancelledError:
            raise PsfError("stopped") from None
        except grpc.RpcError as error:
            raise from_rpc_error(
                cast(RpcFailure, error), peer=f"coordinator {address}", hint=self._security.hint
            ) from None
        finally:
            self._call = None

    def _open(self, address: str) -> grpc.Channel:
        if self._channel is None or self._channel[0] != address:
            self._close()
            self._channel = (address, self._security.sync_channel(address, role=ROLE))
        return self._channel[1]

    def _close(self) -> None:
        if self._channel is not None:
            self._channel[1].close()
            self._channel = None
