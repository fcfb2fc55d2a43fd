"""Base class of the controllers: a work queue, and the context that they share. The metrics for Prometheus are those of all controllers
of a process.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import ClassVar

import prometheus_client
from prometheus_client.core import Metric

from app.disk_schedule.controller_cache import ControllerCache
from app.disk_schedule.writer import ObjectWriter
from app.kube.resources import DISK_SCHEDULES
from app.runtime.event_recorder import EventRecorder
from app.runtime.probes import BEHIND_HELP, PREFIX, Reading, gauge_family, process_registry
from app.runtime.work_queue import QueueObserver, Requeue, WorkQueue
from scheduler_core.convert import kube, wire_types
from scheduler_core.disk_schedule import writes as disk_writes
from scheduler_core.model.disk_schedule import DiskSchedule, RequestKind
from scheduler_core.model.kube import condition
from scheduler_core.structs import Struct

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_PENDING = "pending"
_STATES = (_PENDING, "scheduled", "rejected")
_NO_LIMIT = frozenset(
    {disk_writes.BEING_DELETED, disk_writes.DISK_MISSING, disk_writes.DISK_REPLACED, disk_writes.NODE_MISSING}
)


def over_allocated(schedule: DiskSchedule) -> bool:
    """Whether a disk's status holds more than is available."""
    status = schedule.status
    if status.storage_available is None or condition(status.conditions, disk_writes.SCHEDULABLE).reason in _NO_LIMIT:
        return False
    # The condition Schedulable is not enough: a disk that is too full is soon under pressure too, and the condition may name that.
    return status.storage_scheduled > max(0, status.storage_available)


def _cache_metrics(cache: ControllerCache, now: float) -> Iterable[Metric]:
    """Returns the metrics that are read from the cached DiskSchedules during the scrape, on the event loop that owns the
    cache.
    """
    schedules = cache.schedules.readable.values()
    counts: Counter[tuple[RequestKind, str]] = Counter()
    for schedule in schedules:
        for kind in RequestKind:
            allocations = schedule.status.allocations(kind)
            for name in schedule.spec.requests(kind):
                counts[kind, allocations[name].state.value if name in allocations else _PENDING] += 1
    requests = [
        ([kind.value.replace(" ", "_"), state], counts[kind, state]) for kind in RequestKind for state in _STATES
    ]
    over_allocations = sum(map(over_allocated, schedules))
    unreadable = cache.count_unreadable()
    behind = [([label], status.behind(now)) for label, status in cache.statuses.items()]
    broken = [([label], unreadable[label]) for label in cache.statuses]
    text = "Disks on which more is held than is available"
    return (
        gauge_family("disk_over_allocations", text, [], [([], over_allocations)]),
        gauge_family("disk_schedule_requests", "Requests for room on disks", ["kind", "state"], requests),
        gauge_family("disk_schedule_cache_behind_seconds", BEHIND_HELP, ["kind"], behind),
        gauge_family("disk_schedule_unreadable_objects", "Objects that cannot be read", ["kind"], broken),
    )


class ControllerMetrics:
    """This process's metrics, in a registry of their own, and the observer of the work queues."""

    def __init__(self) -> None:
        self.registry = process_registry()
        self._depth = prometheus_client.Gauge(
            f"{PREFIX}_disk_schedule_queue_depth",
            "Keys that are due or in work",
            ["controller"],
            registry=self.registry,
        )
        self._retries = prometheus_client.Counter(
            f"{PREFIX}_disk_schedule_retries",
            "Keys to be looked at again: conflict (somebody was faster), waiting (something is refused), failed",
            ["controller", "why"],
            registry=self.registry,
        )
        self._duration = prometheus_client.Histogram(
            f"{PREFIX}_disk_schedule_reconcile_duration_seconds",
            "Time to look at one key, its calls included",
            ["controller"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._working = prometheus_client.Gauge(
            f"{PREFIX}_disk_schedule_working", "1 while this process reconciles, 0 otherwise", registry=self.registry
        )

    def expect(self, controllers: Iterable[str]) -> None:
        """Initialises the metrics of some controllers with 0."""
        for name in controllers:
            self._depth.labels(controller=name).set(0)
            for why in Requeue:
                self._retries.labels(controller=name, why=why.value)
            self._duration.labels(controller=name)

    def watch(self, cache: ControllerCache, clock: Callable[[], float]) -> None:
        self.registry.register(Reading(lambda: _cache_metrics(cache, clock())))

    def depth(self, controller: str, keys: int) -> None:
        self._depth.labels(controller=controller).set(keys)

    def note_retry(self, controller: str, why: Requeue) -> None:
        self._retries.labels(controller=controller, why=why.value).inc()

    def note_reconciliation(self, controller: str, seconds: float) -> None:
        self._duration.labels(controller=controller).observe(seconds)

    def working(self, *, now: bool) -> None:
        self._working.set(now)


_WORKERS = 8


class ControllerContext(Struct, frozen=True):
    """What the controllers of one process share."""

    namespace: str  # Longhorn's namespace
    cache: ControllerCache  # the informers
    writer: ObjectWriter  # reads and writes single objects
    observer: QueueObserver  # is notified of what the queues do
    events: EventRecorder | None  # None: the mirror decides nothing
    # Seconds after which a request is withdrawn whose replica, or backing image, was never seen to exist.
    orphans_after: float
    clock: Callable[[], float]  # monotonic seconds
    now: Callable[[], datetime]  # the time of day
    random: Callable[[], float]  # a number in [0, 1)

    @property
    def timestamp(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def record_event(self, kind: str, raw: bytes, reason: str, message: str, *, normal: bool = True) -> None:
        """Records what a person must know about the object of this kind that was read as `raw`."""
        if self.events is None:
            return
        metadata = wire_types.header(raw)
        # All kinds of Longhorn have one apiVersion.
        about = kube.ObjectReference(DISK_SCHEDULES.api_version, kind, self.namespace, metadata.name, metadata.uid)
        self.events.record(about, reason, message, normal=normal)


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
        """Reconciles one key. Returns why to reconcile it again after a pause; None: not before an event. Raises an
        ApiError if a call failed; on 409 and 404 the key is soon reconciled again.
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
        if self._running and key:
            self.queue.add(key)
