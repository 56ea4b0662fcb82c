"""TLS over TCP sockets that do not block: they behave like plain ones, and a thread shakes hands."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from psframework.wire import handover


class TlsSocket(ssl.SSLSocket):
    """A TLS socket that behaves like a plain one which does not block."""

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:  # type: ignore[override]
        """Sends of the first buffer; who sends must look how much has left anyway."""
        return self.send(next(iter(buffers)))

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        try:
            return super().recv_into(buffer, nbytes, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None


class Handshakes:
    """TLS handshakes, one step at a time, in a thread: each step is a millisecond of CPU.

    Whoever can reach the port may ask for as many as it likes, and the loop must not pay for them.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "psf-tls")  # it begins with the first step

    async def secure(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_name: str = "",
    ) -> ssl.SSLSocket:
        """The socket after its handshake; it takes the plain one over, and is closed if that fails.

        Args:
            sock: connected, non-blocking.
            context: certificates, and whom to trust.
            server_side: which part this end plays.
            server_name: what the server's certificate must be for.

        Raises:
            ssl.SSLError: one end refuses the other, or does not speak TLS.
            OSError: the connection broke.
        """
        context.sslsocket_class = TlsSocket
        secure = context.wrap_socket(
            sock, server_side=server_side, do_handshake_on_connect=False, server_hostname=server_name or None
        )
        step = self._thread.submit(secure.do_handshake)
        try:
            while True:
                try:
                    await asyncio.wrap_future(step)
                    return secure
                except ssl.SSLWantReadError:
                    await handover.wait_for(secure)
                except ssl.SSLWantWriteError:
                    await handover.wait_for(secure, writing=True)
                step = self._thread.submit(secure.do_handshake)
        except BaseException:
            # Not before the step has ended, if we were cancelled: it may use the descriptor yet.
            step.add_done_callback(lambda _: secure.close())
            raise
        finally:
            del step  # it refers to what it raised, which refers to this frame

    def close(self) -> None:
        """The thread ends after the step that runs."""
        self._thread.shutdown(wait=False)
