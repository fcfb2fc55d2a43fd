"""Accepts TLS connections; each counts as a connection from its first byte on. asyncio's own servers give a connection
to its protocol after the handshake. Callers that never finish a handshake would then be without any limit.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import structlog

from app.runtime.connections import Connections, owner_of

log = structlog.get_logger("server")

# Kubernetes waits for a webhook for a second.
HANDSHAKE_SECONDS: Final = 5.0
# A peer that does not confirm the end of a connection is not waited for any longer.
_SHUTDOWN_SECONDS: Final = 2.0
# As asyncio, after an error such as too many open files.
_ACCEPT_RETRY_SECONDS: Final = 1.0


class _Handshake:
    """A connection before the end of its handshake."""

    answering = False

    def __init__(self, accepted: socket.socket, owner: str) -> None:
        self.owner = owner
        self.aborted = False  # whether the connection was ended for another one
        self._socket = accepted

    def expiry(self, now: float) -> str:  # noqa: ARG002 # as Connection
        # The handshake has a time-out of its own.
        return ""

    def abort(self) -> None:
        """Ends the connection; the event loop owns the socket, and closes it."""
        self.aborted = True
        # The peer may have gone.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


class TlsListener:
    """Accepts connections on one socket from `start` until `close`.

    Args:
        context: returns what a new connection uses; another one has another certificate
        make_protocol: returns the protocol of a connection, whose handshake is finished
    """

    def __init__(
        self,
        listener: socket.socket,
        context: Callable[[], ssl.SSLContext],
        make_protocol: Callable[[], asyncio.Protocol],
        connections: Connections,
    ) -> None:
        listener.setblocking(False)  # noqa: FBT003 # the library's name
        self._listener = listener
        self._context = context
        self._make_protocol = make_protocol
        self._connections = connections
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes: dict[asyncio.Task[None], _Handshake] = {}

    def start(self) -> None:
        self._accepting = asyncio.create_task(self._accept(), name="accepting TLS connections")

    def close(self) -> None:
        """Accepts no more connections, and ends those that are still in their handshake."""
        if self._accepting is not None:
            self._accepting.cancel()
        for handshake in self._handshakes.values():
            handshake.abort()

    async def wait_closed(self) -> None:
        tasks = [*self._handshakes, *([self._accepting] if self._accepting else [])]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(_ACCEPT_RETRY_SECONDS)
                continue
            self._begin(accepted, address)

    def _begin(self, accepted: socket.socket, address: Any) -> None:
        handshake = _Handshake(accepted, owner_of(address[0]))
        task = asyncio.create_task(self._shake_hands(accepted, handshake), name="TLS handshake")
        self._handshakes[task] = handshake
        task.add_done_callback(self._handshakes.pop)
        self._connections.add(handshake)

    async def _shake_hands(self, accepted: socket.socket, handshake: _Handshake) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._make_protocol,
                accepted,
                ssl=self._context(),
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
        except OSError as error:
            # No certificate, no TLS at the other end, too slow, or gone.
            if not handshake.aborted:
                self._connections.metrics.end("handshake")
                # Callers decide how often this happens, so it is counted, and a line only for an administrator who looks for it.
                log.debug("TLS handshake failed", client=handshake.owner, reason=_reason(error))
        finally:
            self._connections.remove(handshake)


def _reason(error: OSError) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else "") or type(error).__name__
