"""Base class of the controllers: a work queue, and the context that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final

from app.disk_schedule.object_events import Recorder
from app.disk_schedule.watches import ControllerCache
from app.disk_schedule.writer import ObjectWriter
from app.runtime.work_queue import QueueObserver, Requeue, WorkQueue

_WORKERS: Final = 8


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """What the controllers of one process share."""

    namespace: str  # Longhorn's namespace
    cache: ControllerCache  # the informers
    writer: ObjectWriter  # reads and writes single objects
    observer: QueueObserver  # is notified of what the queues do
    events: Recorder  # receives what a person must know about an object
    # Seconds after which a request is withdrawn whose replica, or backing image, was never seen to exist.
    orphans_after: float
    clock: Callable[[], float]  # monotonic seconds
    now: Callable[[], datetime]  # the time of day
    random: Callable[[], float]  # a number in [0, 1)

    @property
    def timestamp(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")


class Controller(ABC):
    """Reconciles the objects of one kind. All state between two reconciliations is in the objects; the queue only holds
    the keys to reconcile.
    """

    name: ClassVar[str]

    def __init__(self, context: ControllerContext, workers: int = _WORKERS) -> None:
        self.context = context
        self.cache = context.cache
        self.writer = context.writer
        self.queue = WorkQueue(self.name, self.reconcile, context.observer, workers=workers, random=context.random)
        self._running = False
        self.subscribe()

    @abstractmethod
    def subscribe(self) -> None:
        """Subscribes to the changes that trigger a reconciliation."""

    @abstractmethod
    def all_keys(self) -> Iterable[str]:
        """Returns the keys to reconcile at start."""

    @abstractmethod
    async def reconcile(self, key: str) -> Requeue | None:
        """Reconciles one key. Returns why to reconcile it again after a pause; None: not before an event.

        Raises:
            ApiError: a call failed; on 409 and 404 the key is soon reconciled again
        """

    async def run(self) -> None:
        """Reconciles all keys, and before them those that change, until cancelled."""
        self._running = True
        try:
            self.queue.add_sweep(self.all_keys())
            await self.queue.run()
        finally:
            self._running = False

    def enqueue(self, key: str) -> None:
        """Adds a key to the queue if this controller runs."""
        if self._running and key:
            self.queue.add(key)
