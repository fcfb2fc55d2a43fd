"""The extender beside a live cluster: when it competes, when it answers, and how it takes over and hands over.

    caches filled, enabled → compete for the Lease → elected → catch up with everything that happened before → adopt what the
    predecessor had reserved → answer, and point the Service here → Lease lost, disabled or caches stale → answer 503
    SIGTERM → no new questions → answer those taken, and wait, bounded, for the pod being placed → point the Service nowhere
    → release the Lease, so that a successor answers at once

Every question asks `refusal` before it is worked out and `late_refusal` before it is answered. Both read the elector's fence,
so that a process that was stopped or cut off refuses before another may answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from app.extender.availability import ALWAYS_OPEN, Refusal
from app.extender.endpoint_publisher import Publisher
from app.extender.metrics import Metrics
from app.extender.verbs import Reservations
from app.kube import resources
from app.kube.client import ApiError
from app.kube.cluster_cache import ClusterCache
from app.kube.config_map_cache import ConfigMapCache
from app.runtime.elector import Elector
from app.schemas.explain import ServiceState, Unsettled
from scheduler_core.extender.settings import DEFAULTS, ENABLED, ExtenderSettings, SettingsHistory, Source

log = structlog.get_logger("live")

NAME: Final = "longhorn-scheduler-extender"
CATCH_UP_SECONDS: Final = 15.0
DRAIN_SECONDS: Final = 10.0
WITHDRAW_SECONDS: Final = 1.0
RELEASE_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 5.0
_CRASH_SECONDS: Final = 1.0
_PUBLISH_AGAIN_SECONDS: Final = 2.0
# Somebody may have edited or deleted the EndpointSlice: one GET now and then.
_LOOK_AGAIN_SECONDS: Final = 10.0
_STEP_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Parts:
    """What a live extender is made of.

    Attributes:
        publisher: None if there is no address to point the Service to
        environment: the extender's own settings given by flag or variable
        policy_problem: why the policy in force cannot be asked
    """

    cache: ClusterCache
    config_map: ConfigMapCache
    elector: Elector
    publisher: Publisher | None
    metrics: Metrics
    environment: Mapping[str, str]
    node_name: str
    policy_problem: Refusal = ALWAYS_OPEN


class Companion(Protocol):
    """Something that goes on beside the answers, while this process leads."""

    async def run(self) -> None:
        """Does its work until cancelled; none between `clear` and the next `adopt`."""

    def adopt(self) -> None:
        """This process answers from now on."""

    def clear(self) -> None:
        """Forgets everything: somebody else leads."""


class LiveSettings:
    """The extender's own settings as they are now."""

    def __init__(self, cache: ClusterCache, config_map: ConfigMapCache, environment: Mapping[str, str]) -> None:
        self._cache = cache
        self._config_map = config_map
        self._environment = environment
        self._history = SettingsHistory()

    def __call__(self) -> ExtenderSettings:
        """In this order: ConfigMap, Longhorn's Setting, environment, the proposal's defaults."""
        sources = [
            Source(f"ConfigMap {NAME}", self._config_map.data),
            Source(resources.LONGHORN_SETTINGS.kind, self._cache.settings),
            Source("environment", self._environment),
        ]
        return self._history.effective(sources)


class Live:
    """Owner of the decision whether this process answers."""

    def __init__(
        self,
        parts: Parts,
        settings: Callable[[], ExtenderSettings],
        reservations: Reservations,
        companions: Sequence[Companion] = (),
        unsettled: Callable[[], Unsettled] = Unsettled,
    ) -> None:
        self._parts = parts
        self._reservations = reservations
        self._companions = companions
        self._unsettled = unsettled
        self._settings = settings
        self._known = ExtenderSettings()
        self._answering: int | None = None  # the term this process answers in
        self._published: int | None = None
        self._draining = False
        self._silent_since: float | None = None
        self._wake = asyncio.Event()
        self._steering: asyncio.Task[None] | None = None
        self._trouble = ""
        self._publishing_trouble = ""
        self._publish_again_at = 0.0
        self._may_point_here = (
            True  # a predecessor in this pod may have left it so; only our own address is ever taken out
        )
        self._look_again_at = 0.0

    @property
    def readiness_problem(self) -> str:
        """Why the cluster's state is not known well enough to decide; "" if it is."""
        parts = self._parts
        return parts.cache.problem or parts.config_map.problem or parts.policy_problem()

    def state(self) -> ServiceState:
        """What /state says of the service."""
        settings, refusal = self._settings(), self.refusal()
        return ServiceState(
            answering=not refusal,
            refusal=refusal,
            leader=self._parts.elector.holder,
            enabled=settings.enabled,
            pod_scheduling_timeout=settings.pod_scheduling_timeout,
            node_reservation_timeout=settings.node_reservation_timeout,
            origins=dict(sorted(settings.origins.items())),
            refused_settings=list(settings.problems),
            reserved_nodes=sorted(self._reservations.reserved()),
            outstanding=self._unsettled(),
        )

    def refusal(self) -> str:
        """Why no question is taken now; "" if they are."""
        return "shutting down" if self._draining else self.late_refusal()

    def late_refusal(self) -> str:
        """Why a question that was taken is not answered now; "" if it is. Who hands over still leads."""
        elector = self._parts.elector
        settings, problem = self._settings(), self.readiness_problem
        if not settings.enabled and not self._unknown:
            return f"{ENABLED} is false ({_origin(settings)})"
        if problem:
            return f"not ready: {problem}"
        if not elector.leading():
            return f"not the leader, {elector.holder or 'nobody'} is" + (
                f": {elector.problem}" if elector.problem else ""
            )
        if self._answering != elector.term:
            return "taking over from the last leader"
        return ""

    @property
    def _unknown(self) -> bool:
        """Whether it is not known yet what the settings say."""
        return bool(self._parts.config_map.problem) or not self._parts.cache.filled

    async def filled(self) -> None:
        """Returns once the cluster has been read."""
        await self._parts.cache.synced()

    async def run(self) -> None:
        """Keeps everything up to date until cancelled."""
        loop = asyncio.get_running_loop()
        elector = self._parts.elector

        def wake() -> None:
            loop.call_soon_threadsafe(self._wake.set)

        elector.changed(wake)
        elector.enable(False)  # noqa: FBT003 # what the name says
        elector.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._parts.cache.run())
                tasks.create_task(self._parts.config_map.run())
                for companion in self._companions:
                    tasks.create_task(companion.run())
                self._steering = tasks.create_task(self._steer())
        finally:
            # After a crash nobody has seen how the last offers ended: the Lease runs out, which gives them time.
            await asyncio.to_thread(elector.stop, release=False, seconds=_CRASH_SECONDS)

    async def drain(self) -> None:
        """Hands over: what this process decided is placed or given up, and the Lease is free when this returns."""
        self._draining = True
        if self._steering is not None:  # it would go on publishing, and stop competing before all is settled
            self._steering.cancel()
            await asyncio.wait({self._steering})
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._reservations.settled()
        except TimeoutError:
            log.warning("a pod is still being placed, handing over without it")
        self._answering = None  # what is forgotten next must not be answered without
        self._forget()
        await self._withdraw()
        await asyncio.to_thread(self._parts.elector.stop, release=True, seconds=RELEASE_SECONDS)
        self._parts.metrics.heartbeat(self._parts.node_name, leading=False)

    async def _withdraw(self) -> None:
        """Nobody is sent to an address where soon nobody listens; the Lease is still held, so no successor is overwritten."""
        if not self._points_here:
            return
        try:
            async with asyncio.timeout(WITHDRAW_SECONDS):
                await self._publish(None)
        except TimeoutError:
            log.warning("the Service still points here: the API server does not answer")

    async def _steer(self) -> None:
        while True:
            await self._step()
            try:
                async with asyncio.timeout(_STEP_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    async def _step(self) -> None:
        elector = self._parts.elector
        if not elector.alive:
            raise RuntimeError("the elector has ended, so this process can never lead again")
        settings = self._tell_settings()
        problem = self.readiness_problem
        self._tell_problem(problem or elector.problem or self._publishing_trouble)
        if not settings.enabled and (self._points_here or (self._may_point_here and not elector.holder)):
            await self._publish(None)
        # Disabled, the Lease is kept for as long as the Service points here and the API server does not let us change that.
        wanted = settings.enabled or self._points_here
        elector.enable(self._competes(wanted=wanted and not problem))
        term = elector.term if elector.leading() else None
        if self._answering is not None and term != self._answering:
            self._step_down()
        if term is not None and self._answering is None and settings.enabled:
            await self._take_over(term)
        due = self._published != self._answering or asyncio.get_running_loop().time() >= self._look_again_at
        if self._answering is not None and due and settings.enabled:
            await self._publish(self._answering)
        self._parts.metrics.heartbeat(self._parts.node_name, leading=not self.refusal())

    def _competes(self, *, wanted: bool) -> bool:
        """Who has answered keeps the Lease, silently, until what came of the last answers can be seen: a release says that it can."""
        now = asyncio.get_running_loop().time()
        if wanted:
            self._silent_since = None
            return True
        if self._answering is None:
            return False
        self._silent_since = now if self._silent_since is None else self._silent_since
        return now - self._silent_since < SILENT_SECONDS

    @property
    def _points_here(self) -> bool:
        return self._published is not None and self._parts.elector.leading()

    def _step_down(self) -> None:
        log.warning("no longer the leader", term=self._answering)
        self._answering = self._published = None
        self._publishing_trouble = ""
        self._forget()

    def _forget(self) -> None:
        self._reservations.clear()
        for companion in self._companions:
            companion.clear()

    async def _take_over(self, term: int) -> None:
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await self._parts.cache.catch_up()
        except TimeoutError:
            log.warning("elected, but the API server does not tell what happened before; trying again")
            return
        if not self._leads_in(term):
            return
        await self._reservations.adopt(self._parts.elector.undisturbed)
        if not self._leads_in(term):  # that may take a while
            self._reservations.clear()
            return
        for companion in self._companions:
            companion.adopt()
        self._answering = term
        log.info("leading", term=term)

    def _leads_in(self, term: int) -> bool:
        return self._parts.elector.leading() and self._parts.elector.term == term

    async def _publish(self, term: int | None) -> None:
        """Points the Service here, or away from here; after a failure not again at once."""
        publisher, clock = self._parts.publisher, asyncio.get_running_loop().time
        if clock() < self._publish_again_at:
            return
        try:
            if publisher is not None and term is None:
                await publisher.withdraw()
            elif publisher is not None and not await publisher.publish():
                return
        except ApiError as error:
            self._publishing_trouble = str(error)
            self._publish_again_at = clock() + _PUBLISH_AGAIN_SECONDS
            return
        self._publishing_trouble = ""
        self._published = term
        self._may_point_here = term is not None
        self._look_again_at = clock() + _LOOK_AGAIN_SECONDS

    def _tell_settings(self) -> ExtenderSettings:
        settings = self._settings()
        if settings != self._known and not self._unknown:
            self._known = settings
            log.info(
                "settings",
                enabled=settings.enabled,
                pod_scheduling_timeout=settings.pod_scheduling_timeout,
                node_reservation_timeout=settings.node_reservation_timeout,
                origins=dict(settings.origins),
            )
            for problem in settings.problems:
                log.warning("setting refused", problem=problem)
        return settings

    def _tell_problem(self, problem: str) -> None:
        if problem != self._trouble:
            self._trouble = problem
            if problem:
                log.warning("trouble", problem=problem)
            else:
                log.info("trouble is over")


def _origin(settings: ExtenderSettings) -> str:
    origin = settings.origins.get(ENABLED, DEFAULTS)
    return "the default; see docs/configuration.md" if origin == DEFAULTS else f"says {origin}"
