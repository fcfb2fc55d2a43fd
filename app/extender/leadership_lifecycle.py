"""When the extender competes and answers in a live cluster, and how a leader takes over and hands over.

    caches filled, enabled → compete for the Lease → elected → point the Service here, and catch up with everything that happened
    before → adopt what the previous leader had reserved → answer → Lease lost, disabled or caches stale → refuse
    SIGTERM → no new requests → answer accepted requests, and record the open offers for the successor → release the
    Lease, so that a successor answers at once, and remove this process from the Service

Every request checks `refusal` before it is decided and `late_refusal` before it is answered. Both read the elector's
fence, so that a process that was stopped or cut off refuses before another process may answer.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from operator import is_not
from typing import Any, Protocol

import structlog

from app.extender.endpoint_publisher import EndpointPublisher, GuardEndpoint, PublishedService
from app.extender.metrics import Metrics
from app.extender.offer_store import OfferStore
from app.extender.verbs import Reservations
from app.kube import client, resources
from app.kube.cluster_cache import ClusterCache
from app.kube.store import ConfigMapCache
from app.runtime import leader_loop, logs, server
from app.runtime.elector import Elector
from app.runtime.probes import ALWAYS_AVAILABLE, Availability, SwitchedOff
from app.schemas.state import OutstandingState, ServiceState
from scheduler_core.decide.extender_settings import DEFAULTS, ExtenderSettings, SettingsHistory, SettingsSource
from scheduler_core.leadership.endpoint_slice import EXTENDER
from scheduler_core.model.installation import ENABLED
from scheduler_core.offers.handover_record import HandoverRecord, RecordError
from scheduler_core.structs import Struct

log = structlog.get_logger("live")

NAME = EXTENDER.name
# How long a former leader keeps the Lease without answering, so that its last decisions become visible.
SILENT_SECONDS = 5.0
# How long a new leader waits for what its predecessor had seen, before it finds out what else has happened, which takes a second.
_REACH_SECONDS = 0.5


class ExtenderParts(Struct, frozen=True):
    """The parts of a live extender."""

    cache: ClusterCache
    config_map: ConfigMapCache
    elector: Elector
    publisher: EndpointPublisher | None  # None without an address to point the Service to
    guard: GuardEndpoint
    metrics: Metrics
    node_name: str
    policy_problem: Availability = ALWAYS_AVAILABLE  # returns why the policy in force cannot be evaluated, or ""
    offer_store: OfferStore | None = None  # where a leader records its offers for its successor, None if it makes none
    # Tasks that run whether this process leads or not, such as the caches of a policy.
    background: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()


class LeaderTask(Protocol):
    """A background task that works while this process leads."""

    async def run(self) -> None:
        """Runs until cancelled; idles between `clear` and the next `adopt`."""

    def adopt(self) -> None:
        """Starts: this process answers from now on."""

    def clear(self) -> None:
        """Forgets everything: another process leads."""


class LiveSettings:
    """The extender's own settings as they are now."""

    def __init__(self, cache: ClusterCache, config_map: ConfigMapCache, environment: Mapping[str, str]) -> None:
        self._cache = cache
        self._config_map = config_map
        self._environment = environment
        self._history = SettingsHistory()
        self._sources: tuple[Mapping[str, str], ...] = ()
        self._latest = ExtenderSettings()

    def __call__(self) -> ExtenderSettings:
        """Returns the settings, each from ConfigMap, Longhorn's Setting, environment or the proposal's defaults."""
        sources = (self._config_map.data, self._cache.settings, self._environment)
        # They are asked for with every object that a watch delivers, and a source that changes is another object.
        if len(self._sources) != len(sources) or any(map(is_not, sources, self._sources)):
            names = (f"ConfigMap {NAME}", resources.LONGHORN_SETTINGS.kind, "environment")
            self._latest = self._history.merge(list(map(SettingsSource, names, sources)))
            self._sources = sources
        return self._latest


class ExtenderLifecycle(leader_loop.Program):
    """Owner of the decision whether this process answers.

    Args:
        settings: returns the extender's own settings
        leader_tasks: tasks that work while this process leads
        outstanding: returns what /state shows of demand and offers
    """

    def __init__(
        self,
        parts: ExtenderParts,
        settings: Callable[[], ExtenderSettings],
        reservations: Reservations,
        leader_tasks: Sequence[LeaderTask] = (),
        outstanding: Callable[[], OutstandingState] = OutstandingState,
    ) -> None:
        super().__init__(parts.elector, log)
        self._parts = parts
        self._reservations = reservations
        self._leader_tasks = leader_tasks
        self._outstanding = outstanding
        self._settings = settings
        self._logged_settings = ExtenderSettings()
        self._trouble = logs.ProblemLog(log, "trouble", "trouble is over")
        self._draining = False
        self._publishing: asyncio.Task[None] | None = None
        self._record: HandoverRecord | None = None
        self._record_unusable = False
        self._silent_since: float | None = None
        self._service = PublishedService(parts.publisher, parts.elector.leading)

    @property
    def readiness_problem(self) -> str:
        parts = self._parts
        return parts.cache.problem or parts.config_map.problem or parts.policy_problem()

    @property
    def unreadable(self) -> list[str]:
        """The objects that are left out because they cannot be read, and why; the first ones."""
        return self._parts.cache.unreadable

    @property
    def refused_settings(self) -> list[str]:
        return list(self._settings().problems)

    def state(self) -> ServiceState:
        """Returns what /state shows of the service."""
        settings = self._settings()
        refusal = self.refusal()
        return ServiceState(
            answering=not refusal,
            refusal=refusal,
            leader=self._parts.elector.holder,
            enabled=settings.enabled,
            enforcement=settings.enforcement,
            pod_scheduling_timeout=settings.pod_scheduling_timeout,
            node_reservation_timeout=settings.node_reservation_timeout,
            origins=dict(sorted(settings.origins.items())),
            refused_settings=self.refused_settings,
            reserved_nodes=sorted(self._reservations.reserved_nodes()),
            outstanding=self._outstanding(),
            unreadable=self.unreadable,
            guard=self._parts.guard.state(settings.placement_guard),
        )

    def refusal(self) -> str:
        return "shutting down" if self._draining else self.late_refusal()

    def late_refusal(self) -> str:
        """Returns why an accepted request must be refused after all, or ""; a leader that is draining may still answer."""
        elector = self._parts.elector
        settings = self._settings()
        problem = self.readiness_problem
        if not settings.enabled and not self._settings_pending:
            origin = settings.origins.get(ENABLED, DEFAULTS)
            source = "the default; see docs/configuration.md" if origin == DEFAULTS else f"says {origin}"
            return SwitchedOff(f"{ENABLED} is false ({source})")
        if problem:
            return f"not ready: {problem}"
        if not elector.leading():
            leader = f"not the leader, {elector.holder or 'no process'} is"
            return f"{leader}: {elector.problem}" if elector.problem else leader
        if self.term != elector.term:
            return "taking over from the last leader"
        return ""

    def keeps_guard_connections(self) -> bool:
        """Whether API servers may keep a connection: new ones go where the Service leads."""
        return not self.late_refusal()

    def review_refusal(self) -> str:
        """Returns why no placement is reviewed now, or ""; a process that does not lead reviews, too."""
        if not self._settings().enabled:
            return f"{ENABLED} is false"
        return self.readiness_problem

    @property
    def _settings_pending(self) -> bool:
        return bool(self._parts.config_map.problem) or not self._parts.cache.has_synced

    def log_failure(self, error: BaseException) -> None:
        log.error(
            "what keeps the cluster's state current has failed, so nothing can be answered any more", exc_info=error
        )

    def log_drain_failure(self, error: BaseException) -> None:
        log.error("handing over failed; the Lease runs out by itself", exc_info=error)

    async def run_tasks(self) -> None:
        """Runs caches and background tasks until cancelled."""

        async def freeze_heap_after_sync() -> None:
            await self._parts.cache.wait_for_sync()
            server.freeze_heap()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._parts.cache.run())
            tasks.create_task(self._parts.config_map.run())
            tasks.create_task(freeze_heap_after_sync())
            for run in self._parts.background:
                tasks.create_task(run())
            for task in self._leader_tasks:
                tasks.create_task(task.run())

    @property
    def competes(self) -> bool:
        """Whether to compete for the Lease; a former leader keeps it for `SILENT_SECONDS` without answering."""
        # While disabled, the Lease is kept as long as the Service points here and cannot be changed.
        wanted = self._settings().enabled or self._service.points_here
        if wanted and not self.readiness_problem:
            self._silent_since = None
            return True
        if self.term is None:
            return False
        now = asyncio.get_running_loop().time()
        if self._silent_since is None:
            self._silent_since = now
        return now - self._silent_since < SILENT_SECONDS

    @property
    def can_start(self) -> bool:
        return self._settings().enabled

    async def before_step(self) -> None:
        """Logs changes, and removes a disabled process from the Services."""
        elector = self._parts.elector
        settings = self._settings()
        self._log_settings(settings)
        service = self._service
        problem = self.readiness_problem or elector.problem or service.problem
        # It is not over as long as a setting is refused.
        if problem or not settings.problems:
            self._trouble.note(problem)
        if settings.enabled:
            return
        if service.points_here or (service.may_point_here and not elector.holder):
            await service.withdraw()
        for left in self._parts.guard.left:
            await left.withdraw()

    async def after_step(self) -> None:
        """Points the Services here, and checks that they still lead here."""
        if self._publishing is not None:
            await self._publishing
            self._publishing = None
        term = self.term
        if term is not None and self._settings().enabled:
            await self._service.keep(term)
        if not self.review_refusal():
            await self._parts.guard.keep(term, self._settings().placement_guard)
        self._parts.metrics.heartbeat.labels(self._parts.node_name).set(not self.refusal())

    async def catch_up(self) -> None:
        """Returns once the cache has everything that the previous leader had."""
        # Meanwhile the Services must not lead to a process that has ended.
        if self._publishing is None:
            term = self._parts.elector.term

            async def publish() -> None:
                await self._service.keep(term)
                await self._parts.guard.keep(term, self._settings().placement_guard)

            self._publishing = asyncio.create_task(publish(), name="pointing the Services here")
        store = self._parts.offer_store
        self._record = None
        self._record_unusable = False
        try:
            if store is not None:
                self._record = await store.read()
        except (client.ApiError, RecordError) as error:
            self._record_unusable = not (isinstance(error, client.ApiError) and error.not_found)
            log.warning("the previous leader's offers are unknown", problem=str(error))
        cache = self._parts.cache
        record = self._record
        # A leader that ended in order says what it had; otherwise everything that happened before this call counts.
        if record is not None and record.head.final and await cache.reach(record.head.versions, _REACH_SECONDS):
            pods = cache.state().view.snapshot.pods
            # A pod that no watch had delivered to the previous leader either may be missing.
            if all((entry.offered.pod.namespace, entry.offered.pod.name) in pods for entry in record.offers):
                return
        await cache.catch_up()

    async def adopt(self) -> None:
        """Restores the previous leader's reservations."""
        undisturbed = self._parts.elector.undisturbed
        incomplete = self._record is not None and not self._record.head.complete
        if undisturbed == math.inf and (self._record_unusable or incomplete):
            # A released Lease says that there is a record. Without it, the leader's answers must become visible.
            undisturbed = 0.0
        await self._reservations.adopt(undisturbed, self._record)
        self._record = None

    def start(self, term: int) -> None:
        for task in self._leader_tasks:
            task.adopt()
        log.info("leading", term=term)

    async def stop(self) -> None:
        """Forgets everything that only a leader may keep."""
        if self._publishing is not None:
            self._publishing.cancel()
            self._publishing = None
        self._service.forget()
        self._parts.guard.forget()
        self._reservations.clear()
        for task in self._leader_tasks:
            task.clear()

    def log_lead_lost(self, term: int) -> None:
        log.warning("no longer the leader", term=term)

    def begin_drain(self) -> None:
        self._draining = True

    async def settle(self) -> bool:
        """Returns whether a successor can know every decision; otherwise it has to wait for them."""
        knows = await self._reservations.settle()
        if not knows and self._parts.elector.leading():
            log.warning("the Lease runs out by itself, because decisions may not be visible yet")
        return knows

    def log_unsettled(self) -> None:
        log.warning("a pod is still being placed, handing over without it")

    async def hand_over(self) -> None:
        """Removes this process from the Services before it stops listening."""
        self._parts.metrics.heartbeat.labels(self._parts.node_name).set(0)
        guard = self._parts.guard
        # Without the Lease none points here.
        services = [*([self._service] if self._service.points_here else []), *(guard.left if guard.points_here else [])]
        for service in services:
            await service.withdraw_in_time()

    def _log_settings(self, settings: ExtenderSettings) -> None:
        if settings == self._logged_settings or self._settings_pending:
            return
        self._logged_settings = settings
        log.info(
            "settings",
            enabled=settings.enabled,
            pod_scheduling_timeout=settings.pod_scheduling_timeout,
            node_reservation_timeout=settings.node_reservation_timeout,
            enforcement=settings.enforcement.value,
            placement_guard=settings.placement_guard.value,
            origins=dict(settings.origins),
        )
        for problem in settings.problems:
            log.warning("setting refused", problem=problem)
