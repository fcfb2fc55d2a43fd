"""The publish calls of external-attacher. Each holds one of its workers until its volume is attached or it fails."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from scheduler_core.backoff import Backoff
from simulator.config import Config


class PublishCall(Struct, frozen=True):
    """One ControllerPublishVolume call in progress.

    Attributes:
        seconds: since its start
        until_poll: seconds until it looks at its volume again, 0 if it looks now
    """

    seconds: float
    until_poll: float


class PublishCalls:
    """Which attachments hold a worker, and when the next call of each is due. Mirrors external-attacher's workers and Longhorn's
    waitForVolumeState: the first look at a volume is one `publish_poll` after the start of the call. Calls that hang hold up all
    other attachments, to be detached as well as attached.
    """

    def __init__(self, config: Config, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._backoff = Backoff(config.attach_retry, config.attach_retry_limit)
        self._workers: set[str] = set()
        self._started: dict[str, float] = {}
        self._next_poll: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._failures: dict[str, int] = {}

    def take_worker(self, attachment: str) -> bool:
        """Gives an attachment a worker, unless it has one. Returns False if none is free; the attachment is then among the next
        that `end` returns.
        """
        if attachment not in self._workers and len(self._workers) >= self._config.attach_workers:
            self._waiting.add(attachment)
            return False
        self._workers.add(attachment)
        return True

    def get(self, attachment: str) -> PublishCall | None:
        """Returns the call of an attachment, None if none is in progress."""
        started = self._started.get(attachment)
        if started is None:
            return None
        now = self._clock()
        return PublishCall(now - started, max(0.0, self._next_poll[attachment] - now))

    def keep(self, attachment: str) -> None:
        """Starts the call of an attachment, or continues it after a look at its volume."""
        now = self._clock()
        self._started.setdefault(attachment, now)
        if self._next_poll.setdefault(attachment, now + self._config.publish_poll) <= now:
            self._next_poll[attachment] = now + self._config.publish_poll

    def end(self, attachment: str, *, failed: bool = False) -> set[str]:
        """Frees the worker of an attachment; returns the attachments that wait for one. Only a failure keeps the count of an
        attachment's failures.
        """
        self._workers.discard(attachment)
        self._started.pop(attachment, None)
        self._next_poll.pop(attachment, None)
        if failed:
            self._failures[attachment] = self._failures.get(attachment, 0) + 1
        else:
            self._failures.pop(attachment, None)
        waiting = self._waiting
        self._waiting = set()
        return waiting

    def retry_delay(self, attachment: str) -> float:
        return self._backoff.delay(max(0, self._failures.get(attachment, 0) - 1))
