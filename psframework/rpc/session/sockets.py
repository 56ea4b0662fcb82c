"""TCP sockets of one connection, as the side that dialled opens them.

gRPC's stream has shown who is there, and told the port and a key. Where the port can be reached, the call
stream and the striped lane move to sockets that the event loop reads itself; where not, they stay with gRPC.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from psframework.errors import DeadlineExceeded, PsfError
from psframework.rpc.session.stream import Link
from psframework.wire.sockets import connect

log = logging.getLogger("psframework.rpc")

PAUSES = (0.5, 4.0)
"""Seconds before a peer that did not answer in time is tried again."""


def pack_number(connection: int, *, stripe: bool) -> int:
    """What a socket is for, as one number: which connection of the session, and whether for chunks."""
    return connection << 1 | stripe


def read_number(number: int) -> tuple[int, bool]:
    """The connection, and whether the socket is for chunks."""
    return number >> 1, bool(number & 1)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a peer takes sockets.

    Args:
        host: by which gRPC reached it.
        port: as it told.
        key: as it told.
        server_name: what its certificate must be for.
    """

    host: str
    port: int
    key: bytes
    server_name: str = ""


class Sockets:
    """Opens the sockets of one connection.

    Args:
        link: the connection.
        place: where the peer takes them.
        context: what TLS is made with; None for plain TCP.

    Attributes:
        moved: whether the call stream has moved, so that others will get through too.
    """

    def __init__(self, link: Link, place: Place, context: Callable[[], ssl.SSLContext | None]) -> None:
        self._link = link
        self._place = place
        self._context = context
        self.moved = False
        self._moving: asyncio.Task[None] | None = None

    async def shorten(self) -> None:
        """Moves the call stream; leaves it where it is if the peer can't be reached. A task of its own."""
        self._moving = asyncio.current_task()
        sock = await self.open(stripe=False)
        if sock is not None:
            self.moved = True
            self._link.shorten(sock)

    async def open(self, *, stripe: bool) -> socket.socket | None:
        """A socket that the peer took, for chunks or for the call stream; None if it can't be reached."""
        for pause in PAUSES if not self.moved else ():
            try:
                return await self._open(stripe=stripe)
            except DeadlineExceeded:  # perhaps since the loop was busy with other things
                await asyncio.sleep(pause)
            except (PsfError, OSError) as error:
                log.debug("gRPC carries it: %s", error)
                return None
        try:
            return await self._open(stripe=stripe)
        except (PsfError, OSError) as error:
            log.debug("gRPC carries it: %s", error)
            return None

    def close(self) -> None:
        """The connection has ended."""
        if self._moving is not None:
            self._moving.cancel()
            self._moving = None

    async def _open(self, *, stripe: bool) -> socket.socket:
        place = self._place
        number = pack_number(self._link.number, stripe=stripe)
        return await connect(
            place.host,
            place.port,
            place.key,
            number,
            context=self._context(),
            server_name=place.server_name,
        )
