"""The server beside a live cluster: what keeps the view current runs beside it, and a signal means to hand over first."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Callable
from types import FrameType

import structlog
import uvicorn
import uvloop

from app.bootstrap.live import live_application
from app.extender.lifecycle import Live
from app.server import config
from app.settings import LiveOptions, Settings

log = structlog.get_logger("live")


def serve_cluster(
    options: LiveOptions, settings: Settings, listener: socket.socket, connected: Callable[[], None]
) -> None:
    """Serves beside a cluster until a signal, then hands over; `connected` is called once there is a cluster to talk to.

    Raises:
        ConnectError: there is no cluster to talk to
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_live(options, settings, listener, connected))


async def _live(
    options: LiveOptions, settings: Settings, listener: socket.socket, connected: Callable[[], None]
) -> None:
    app, live, client = await live_application(options, settings, listener.getsockname()[1])
    connected()
    server = _HandingOver(config(app), live)
    running = asyncio.create_task(live.run())
    running.add_done_callback(server.ended)
    settling = asyncio.create_task(_settle(live))
    try:
        await server.serve(sockets=[listener])
    finally:
        running.cancel()
        settling.cancel()
        await asyncio.gather(running, settling, return_exceptions=True)
        await client.close()
    if running.done() and not running.cancelled() and (error := running.exception()) is not None:
        log.error(
            "what keeps the cluster's state current has failed, so nothing can be answered any more", exc_info=error
        )
        sys.exit(1)


async def _settle(live: Live) -> None:
    """What was read of a large cluster mostly stays: the collector would look at it again and again, 0.1 s each time."""
    await live.filled()
    gc.collect()
    gc.freeze()


class _HandingOver(uvicorn.Server):
    """A server that hands over when it is told to end, and ends at once when it is told twice."""

    def __init__(self, config: uvicorn.Config, live: Live) -> None:
        super().__init__(config)
        self._live = live
        self._loop = asyncio.get_running_loop()
        self._handing_over: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn for SIGINT and SIGTERM."""
        if self._handing_over is not None or self.should_exit:
            super().handle_exit(sig, frame)
            return
        # A signal may come while the loop sleeps; only this way of calling wakes it.
        self._loop.call_soon_threadsafe(self._hand_over, sig, frame)

    def _hand_over(self, sig: int, frame: FrameType | None) -> None:
        self._handing_over = self._loop.create_task(self._live.drain())
        self._handing_over.add_done_callback(lambda done: self._handed_over(done, sig, frame))

    def _handed_over(self, task: asyncio.Task[None], sig: int, frame: FrameType | None) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("handing over failed; the Lease runs out by itself", exc_info=error)
        super().handle_exit(sig, frame)

    def ended(self, task: asyncio.Task[None]) -> None:
        """What keeps the view current has ended; nothing can be answered any more."""
        del task
        self.should_exit = True
